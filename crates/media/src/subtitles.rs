//! [`to_webvtt`]: subtitles as browsers take them. WebVTT is the W3C's; SubRip has no standard: its
//! times have a comma where WebVTT has a point, and its head is missing.

/// Bytes of a file with subtitles: those of the longest film are a fifth of it.
pub(crate) const BYTES_MAX: u64 = 4 << 20;

/// WebVTT of either form. What is not UTF-8 is taken for Windows-1252, in which most old SubRip
/// files of western languages are.
pub fn to_webvtt(bytes: &[u8]) -> String {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().map(|byte| windows_1252(*byte)).collect(),
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    // All three ends of a line are one; NUL is not allowed in WebVTT (§4).
    let text = text.replace("\r\n", "\n").replace('\r', "\n").replace('\0', "\u{fffd}");
    if text.starts_with("WEBVTT") {
        return text;
    }
    let mut vtt = String::with_capacity(text.len() + 16);
    vtt.push_str("WEBVTT\n\n");
    for line in text.split('\n') {
        match timing(line) {
            Some(timing) => vtt.push_str(&timing),
            // Within a text, this would be read as the next timing.
            None => vtt.push_str(&line.replace("-->", "->")),
        }
        vtt.push('\n');
    }
    vtt
}

/// `00:00:01,000 --> 00:00:02,500`, with a place on the screen behind it that is left out.
fn timing(line: &str) -> Option<String> {
    let (from, rest) = line.split_once("-->")?;
    let to = rest.split_whitespace().next()?;
    Some(format!("{} --> {}", time(from.trim())?, time(to)?))
}

/// Hours, minutes and seconds with thousandths; sloppy writers leave zeroes out.
fn time(text: &str) -> Option<String> {
    let (whole, thousandths) = text.split_once([',', '.']).unwrap_or((text, "0"));
    let fields = whole.split(':').map(|field| field.parse::<u32>().ok());
    let fields = fields.collect::<Option<Vec<u32>>>()?;
    let [hours, minutes, seconds] = match fields[..] {
        [minutes, seconds] => [0, minutes, seconds],
        [hours, minutes, seconds] => [hours, minutes, seconds],
        _ => return None,
    };
    if minutes > 59 || seconds > 59 || !thousandths.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let thousandths: String = thousandths.chars().take(3).collect();
    Some(format!("{hours:02}:{minutes:02}:{seconds:02}.{thousandths:0<3}"))
}

/// The bytes in which Windows-1252 differs from Unicode's first 256 characters.
fn windows_1252(byte: u8) -> char {
    const HIGH: [char; 32] = [
        '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž',
        '\u{8f}', '\u{90}', '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9d}',
        'ž', 'Ÿ',
    ];
    match byte {
        0x80..=0x9f => HIGH[usize::from(byte - 0x80)],
        byte => char::from(byte),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subrip_becomes_webvtt() {
        let srt = "\u{feff}1\r\n00:00:01,000 --> 00:00:02,500 X1:5\r\nHello --> there\r\n\r\n2\r\n\
                   1:2:3,4 --> 01:02:04\r\n<i>you</i>\r\n";
        assert_eq!(
            to_webvtt(srt.as_bytes()),
            "WEBVTT\n\n1\n00:00:01.000 --> 00:00:02.500\nHello -> there\n\n2\n\
             01:02:03.400 --> 01:02:04.000\n<i>you</i>\n\n"
        );
    }

    #[test]
    fn webvtt_stays_what_it_is() {
        let vtt = "WEBVTT - a film\n\n00:01.000 --> 00:02.000 line:0\nHello\n";
        assert_eq!(to_webvtt(vtt.as_bytes()), vtt);
    }

    #[test]
    fn old_files_are_not_utf_8() {
        assert!(to_webvtt(b"caf\xe9 \x80 \x93x\x94").contains("café € “x”"));
    }

    #[test]
    fn what_is_no_time_stays_text() {
        for line in ["a --> b", "1:99:00,0 --> 1:00:00,0", "--> ", "1 --> 2", "1:2:3:4 --> 1:2"] {
            assert!(timing(line).is_none(), "{line}");
        }
    }
}
