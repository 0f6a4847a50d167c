//! The page of videos: catalogues that anybody has edited, in a file or in a directory, `Range`
//! fields of anybody's player, and subtitles of anybody's disk.

use std::path::Path;

use discovery::ldap::{Entry, dn, gate};
use media::{Catalogue, Recorded, VideoEntry, VolumeEntry, Wanted, to_webvtt};

/// Bytes of a search.
const QUERY_BYTES: usize = 64;

/// A catalogue: what is taken of it is whole, and stays the same when it is read again.
pub fn catalogue(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let path = Path::new("/videos/catalogue.toml");
    let catalogue = match Catalogue::parse(&text, path) {
        Ok(catalogue) => catalogue,
        Err(error) => {
            let said = error.to_string();
            assert!(said.starts_with("/videos/catalogue.toml"), "{said}");
            assert!(!said.contains('\n'), "an error is one line: {said}");
            return;
        }
    };
    for video in catalogue.videos() {
        let is_there = catalogue.homes().iter().any(|home| home.name == video.home);
        assert!(is_there, "a video of no home: {video:?}");
        let found = catalogue.video(&video.id).map(|one| &one.path);
        assert_eq!(found, Some(&video.path), "two videos have one identifier");
        assert!(video.id.len() == 16 && video.id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        if let Some(poster) = &video.poster {
            let inside = poster.starts_with("/videos") && !poster.components().any(is_parent);
            assert!(inside, "a poster that is elsewhere: {}", poster.display());
        }
    }
    let query: String = text.chars().take(QUERY_BYTES).collect();
    assert!(catalogue.search(&query).count() <= catalogue.videos().len());
    assert_eq!(catalogue.search("").count(), catalogue.videos().len());
}

fn is_parent(component: std::path::Component<'_>) -> bool {
    component == std::path::Component::ParentDir
}

/// An entry of a directory in lines of `name:value`, whatever bytes those are: what is taken of it
/// can be shown. The same bytes as an answer of a server, which is checked before it is used.
pub fn entry(data: &[u8]) {
    let _ = (gate::length(data), gate::cookie(data));
    let mut asked = gate::Asked::default();
    let is_asked = asked.ask(data).is_ok();
    if let Ok(message) = gate::check(data) {
        assert!(is_asked, "whatever has a number can be a request");
        let is_answer = asked.answer(&message).is_ok();
        assert!(!is_answer || message == gate::Message::Other, "what is an answer asks nothing");
    }
    let mut entry = Entry::default();
    for line in data.split(|byte| *byte == b'\n') {
        let Some(at) = line.iter().position(|byte| *byte == b':') else { continue };
        let name = String::from_utf8_lossy(&line[..at]).to_ascii_lowercase();
        entry.attributes.entry(name).or_default().push(line[at + 1..].to_vec());
    }
    if let Ok(VideoEntry { video, .. }) = VideoEntry::read(&entry) {
        assert!(!video.title.is_empty() && !video.title.chars().any(char::is_control));
        assert!(!video.path.contains('\0') && video.tags.len() <= 64);
        assert!(video.duration_s.is_none_or(|seconds| seconds >= 0.0));
        let again = video.recorded.map(Recorded::in_directory);
        let again = again.and_then(|text| Recorded::of_directory(&text));
        assert_eq!(again, video.recorded, "what is written is read");
        assert_eq!(video.visible_to.is_some(), !entry.values("ekvisibleto").is_empty());
    }
    if let Ok(volume) = VolumeEntry::read(&entry) {
        let below = dn::below("cn", &volume.name, "dc=example");
        assert_eq!(dn::first(&below, "cn").as_deref(), Some(volume.name.as_str()));
    }
    let text = String::from_utf8_lossy(data);
    let _ = dn::first(&text, "uid");
}

/// The size of a file in eight bytes, then a `Range` field: parts are within the file, share no
/// byte, and are few.
pub fn ranges(data: &[u8]) {
    let Some((size, field)) = data.split_first_chunk::<8>() else { return };
    let size = u64::from_be_bytes(*size);
    let field = String::from_utf8_lossy(field);
    match Wanted::read(&field, size) {
        Wanted::Whole => {}
        Wanted::Outside => assert!(field.contains('=')),
        Wanted::Parts(parts) => {
            assert!((1..=16).contains(&parts.len()), "{} parts", parts.len());
            let mut sorted = parts.clone();
            sorted.sort_by_key(|part| part.start);
            for part in &sorted {
                assert!(part.start < part.end && part.end <= size, "{part:?} of {size}");
            }
            for pair in sorted.windows(2) {
                assert!(pair[0].end <= pair[1].start, "{pair:?} share a byte");
            }
        }
    }
}

/// Subtitles of any kind become WebVTT, whatever they are.
pub fn subtitles(data: &[u8]) {
    let text = to_webvtt(data);
    assert!(text.starts_with("WEBVTT"), "{text:.40}");
    assert!(text.len() <= 16 + 4 * data.len(), "{} bytes of {}", text.len(), data.len());
}

/// Seeds of the cases of this file.
pub(crate) fn seeds(case: &str) -> Vec<(&'static str, Vec<u8>)> {
    match case {
        "media_catalogue" => vec![
            ("small", SMALL.to_vec()),
            ("empty", Vec::new()),
            ("two_homes_of_one_name", [SMALL, SMALL].concat()),
        ],
        "media_entry" => vec![
            ("video", VIDEO.to_vec()),
            ("volume", VOLUME.to_vec()),
            ("both", [VIDEO, VOLUME].concat()),
            ("result", b"\x30\x0c\x02\x01\x02\x65\x07\x0a\x01\x00\x04\x00\x04\x00".to_vec()),
        ],
        "media_ranges" => [
            ("one", "bytes=0-499"),
            ("from", "bytes=9500-"),
            ("suffix", "bytes=-500"),
            ("several", "bytes=0-0, 500-600 , -1"),
            ("overlap", "bytes=0-10,5-15,15-20"),
            ("huge", "bytes=0-18446744073709551615,18446744073709551616-"),
            (
                "too_many",
                "bytes=0-0,1-1,2-2,3-3,4-4,5-5,6-6,7-7,8-8,9-9,0-0,0-0,0-0,0-0,0-0,0-0,0-0",
            ),
            ("other_unit", "lines=1-2"),
        ]
        .map(|(name, field)| (name, [&10_000u64.to_be_bytes()[..], field.as_bytes()].concat()))
        .to_vec(),
        _ => vec![
            ("srt", b"1\r\n00:00:00,500 --> 00:00:02,000\r\nHello & <b>you</b>\r\n".to_vec()),
            ("vtt", b"\xef\xbb\xbfWEBVTT - words\n\n00:01.000 --> 00:02.000\nHello\n".to_vec()),
            ("latin", b"1\n00:00:01,000 --> 00:00:02,000\nGr\xfc\xdfe\n".to_vec()),
        ],
    }
}

const SMALL: &[u8] = br#"[[home]]
name = "attic"
volume = "iscsi://anna@storage.example/iqn.2026-11.org.example:films/0"
password_file = "attic.secret"
partition = 1

[[video]]
title = "Kyoto in Spring"
home = "attic"
path = "/films/kyoto.mp4"
poster = "posters/kyoto.jpg"
subtitles = [{ path = "/films/kyoto.en.srt", language = "en", label = "English" }]
tags = ["Japan", "2024"]
duration_s = 61.5
bytes = 61_500_000
recorded = 2024-05-01T10:00:00+09:00
container = "mov"
"#;

const VIDEO: &[u8] =
    b"cn:x\nekVolumeId:v\nekPath:/films/kyoto.mp4\nekTitle:Kyoto\nekDurationMs:61500\n\
ekBytes:61500000\nekRecorded:2024050110.5+0900\n\
ekTag:Japan\nekTag:2024\nekSubtitles:{\"path\": \"/films/kyoto.en.srt\", \"language\": \"en\"}\n\
ekVisibleTo:uid=an\\2cna+cn=x,ou=people\nekThumbnail:\xff\xd8\xff\n";

const VOLUME: &[u8] =
    b"cn: a, b \nekVolumeId:v\nekIscsiName:iqn.2026-11.org.example:films\nekLun:0\n\
ekPortal:[2001:db8::1]:3260\nekPartition:1\nekUser:anna\n";
