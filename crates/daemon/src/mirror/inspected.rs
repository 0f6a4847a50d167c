//! What a device holds of a mirror ([`block::mirror::inspect()`]), as text for people.

use std::fmt::Write as _;
use std::time::UNIX_EPOCH;

use block::mirror::inspect::{LegInspection, MetadataInspection};
use block::mirror::superblock::{Consistency, Role};
use block::mirror::{Inspection, MirrorError};

use super::report::{bytes, clock, state_words};

/// What a device holds of a mirror, in one line for whoever was about to write to it, with the
/// commands that decide; `None` for nothing.
pub fn found(inspected: &Result<Inspection, MirrorError>) -> Option<String> {
    Some(match inspected {
        Ok(Inspection::Nothing) => return None,
        Ok(Inspection::Leg(leg)) => {
            let told = leg.told.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            let writer = if leg.writer.is_empty() { "nobody" } else { &leg.writer };
            format!(
                "is a leg of mirror {} ({} bytes, generation {}, last told at {}; its writer is \
                 {writer}); `enkaku mirror promote` takes its image over, `enkaku mirror inspect` \
                 shows more",
                leg.mirror,
                leg.size_bytes,
                leg.generation,
                clock(told)
            )
        }
        Ok(Inspection::Metadata(found)) => {
            let legs: Vec<&str> =
                found.legs.iter().flatten().map(|leg| leg.name.as_str()).collect();
            format!(
                "holds the metadata of mirror {} ({} bytes, generation {}, legs: {})",
                found.mirror,
                found.size_bytes,
                found.generation,
                legs.join(", ")
            )
        }
        Ok(_) => "holds something of a mirror (`enkaku mirror inspect` shows it)".into(),
        Err(error) => format!("seems to be a mirror's: {error}"),
    })
}

/// Some lines.
pub fn text(found: &Inspection) -> String {
    match found {
        Inspection::Nothing => "nothing of a mirror".into(),
        Inspection::Metadata(found) => metadata(found),
        Inspection::Leg(found) => leg(found),
        _ => "something of a mirror that this program does not know".into(),
    }
}

fn metadata(found: &MetadataInspection) -> String {
    let MetadataInspection { mirror, generation, .. } = found;
    let ended = if found.clean { "closed in order" } else { "not closed in order, or it runs" };
    let mut text = format!(
        "the metadata of mirror {mirror}: {} bytes ({}), generation {generation}, {ended}\n",
        found.size_bytes,
        bytes(found.size_bytes)
    );
    match found.role {
        Role::Primary => {}
        Role::Secondary => {
            text.push_str("the local disk has failed; the legs went on without it\n")
        }
        Role::Restoring => {
            text.push_str(
                "the local disk is being given the image of a leg: it is none until then\n",
            );
        }
        Role::HandedBack => {
            text.push_str("another site has taken over, and the local disk was given back to it\n");
        }
    }
    for (index, leg) in found.legs.iter().enumerate() {
        // `write!` to a String cannot fail.
        let _ = match leg {
            Some(leg) => writeln!(
                text,
                "  leg {}: {}, last seen {}, in generation {}",
                index + 1,
                leg.name,
                state_words(leg.state),
                leg.base
            ),
            None => writeln!(text, "  leg {}: removed", index + 1),
        };
    }
    text.truncate(text.trim_end().len());
    text
}

fn leg(found: &LegInspection) -> String {
    let LegInspection { mirror, generation, .. } = found;
    let image = match found.consistency {
        Consistency::Consistent => "the image is one of one moment".to_owned(),
        Consistency::InconsistentSince(epoch) => {
            format!("the image is not one of one moment (since epoch {epoch}): a copy is under way")
        }
        Consistency::Applying(committed) => format!(
            "the image is one of one moment: {} of its redo log are committed, and copied to their \
             place by whoever takes it up",
            bytes(committed.bytes)
        ),
    };
    let told = found.told.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    let writer = match &*found.writer {
        "" => String::new(),
        writer => format!(" by {writer}"),
    };
    format!(
        "a leg of mirror {mirror}: {} bytes ({}), generation {generation}, {} before it\n{image}\n\
         last told by its mirror at {}{writer}",
        found.size_bytes,
        bytes(found.size_bytes),
        found.history.len(),
        clock(told)
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use block::mirror::LegState;
    use block::mirror::inspect::LegRecordInspection;

    use super::*;

    #[test]
    fn what_is_there_is_told_in_words() {
        assert_eq!(text(&Inspection::Nothing), "nothing of a mirror");
        let here = MetadataInspection {
            mirror: "3fa9c2d1-07aa".into(),
            role: Role::Primary,
            size_bytes: 4 << 20,
            generation: "88d20c17".into(),
            clean: true,
            legs: vec![
                Some(LegRecordInspection {
                    name: "/mnt/usb/vm1.img".into(),
                    identity: String::new(),
                    state: LegState::InSync,
                    base: "88d20c17".into(),
                    leg_bytes: 8 << 20,
                }),
                None,
            ],
        };
        let expected = "\
the metadata of mirror 3fa9c2d1-07aa: 4194304 bytes (4.2 MB), generation 88d20c17, closed in order
  leg 1: /mnt/usb/vm1.img, last seen in sync, in generation 88d20c17
  leg 2: removed";
        assert_eq!(text(&Inspection::Metadata(here)), expected);
        let there = LegInspection {
            mirror: "3fa9c2d1-07aa".into(),
            size_bytes: 4 << 20,
            generation: "88d20c17".into(),
            history: vec!["00000001".into()],
            consistency: Consistency::InconsistentSince(7),
            batch: None,
            redo_bytes: 0,
            writer: "near".into(),
            told: UNIX_EPOCH + Duration::from_secs(1),
        };
        let expected = "\
a leg of mirror 3fa9c2d1-07aa: 4194304 bytes (4.2 MB), generation 88d20c17, 1 before it
the image is not one of one moment (since epoch 7): a copy is under way
last told by its mirror at 1970-01-01 00:00:01.000 UTC by near";
        assert_eq!(text(&Inspection::Leg(there)), expected);
    }
}
