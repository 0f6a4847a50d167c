//! The file as users write it, and as we do.

use block::mirror::{Lag, VerifyEvery};

use super::*;

const PATH: &str = "/etc/enkaku/mirrors/vm1.toml";

const FULL: &str = r#"
[mirror]
local = "/dev/vg/vm1"
metadata = "/var/lib/enkaku/vm1.mirror"
mode = "sync"
lag = { seconds = 2.5, bytes = "64M", on = "fall-behind" }
on_loss = "stop"
remote_timeout = "3s"
resync_rate = "200mbit"
before_resync = ["/usr/local/bin/snap", "the \"vm1\""]
before_resync_timeout = "90s"
verify = { every = "7d", rate = "20%" }

[[mirror.remote]]
url = "iscsi://backup@far:3261/iqn.2026-11.org.example:vm1/0"
chap_password_file = "/etc/enkaku/far.secret"
mutual_user = "far"
mutual_password_file = "/etc/enkaku/near.secret"
initiator_name = "iqn.2026-11.org.example:near"
connections = 4
dscp = "le"
digest = "prefer"
fence = "reservation"
order = "waited"

[[mirror.remote]]
path = "/mnt/usb/vm1 \"copy\".img"
"#;

fn parsed_ok(text: &str) -> MirrorConfig {
    MirrorConfig::parse(Path::new(PATH), text).unwrap()
}

fn problems(text: &str) -> Vec<String> {
    let ConfigError(problems) = MirrorConfig::parse(Path::new(PATH), text).unwrap_err();
    problems.iter().map(|problem| problem.to_string().replace(PATH, "vm1.toml")).collect()
}

#[test]
fn every_key_is_read() {
    let config = parsed_ok(FULL);
    assert_eq!(config.local, Path::new("/dev/vg/vm1"));
    let expected = Behaviour {
        mode: Mode::Sync,
        lag: Lag { age: Duration::from_millis(2500), bytes: 64 << 20, on: OnLag::FallBehind },
        on_loss: OnLoss::Stop,
        remote_timeout: Duration::from_secs(3),
        resync_rate: ResyncRate::BytesPerS(25_000_000),
        verify: Some(VerifyEvery {
            every: Duration::from_secs(7 * 24 * 3600),
            rate: ResyncRate::Percent(20),
        }),
        ..Behaviour::default()
    };
    assert_eq!(config.behaviour, expected);
    let hook = config.hook.as_ref().unwrap();
    assert_eq!(hook.command, ["/usr/local/bin/snap", "the \"vm1\""]);
    assert_eq!(hook.timeout, Duration::from_secs(90));
    let [far, usb] = &config.legs[..] else { panic!("two legs") };
    assert_eq!(far.way.to_string(), "iscsi://backup@far:3261/iqn.2026-11.org.example:vm1/0");
    assert_eq!(far.connections, Some(4));
    assert_eq!((far.dscp, usb.dscp), (Some("le".parse().unwrap()), None));
    assert_eq!(far.mutual.as_ref().unwrap().0, "far");
    assert_eq!((far.fence, usb.fence), (Some(FenceWish::Reservation), None));
    assert_eq!((far.order, usb.order), (OrderWish::Waited, OrderWish::Auto));
    assert_eq!(usb.way.to_string(), "/mnt/usb/vm1 \"copy\".img");
}

#[test]
fn what_is_written_is_read_again() {
    for text in [FULL, MINIMAL] {
        let config = parsed_ok(text);
        let written = config.to_toml("vm1").unwrap();
        assert_eq!(
            format!("{:?}", without_places(parsed_ok(&written))),
            format!("{:?}", without_places(config)),
            "{written}"
        );
    }
}

fn without_places(mut config: MirrorConfig) -> MirrorConfig {
    config.legs.iter_mut().for_each(|leg| leg.place = Place::default());
    config
}

#[test]
fn a_time_between_verifications_is_one_of_days_or_less() {
    let with = |every: &str| {
        let key = format!("[mirror]\nverify = {{ every = \"{every}\" }}\n");
        MINIMAL.replacen("[mirror]\n", &key, 1)
    };
    for (every, seconds) in [("7d", 604_800), ("1.5h", 5400), ("2 min", 120), ("1s", 1)] {
        let wish = parsed_ok(&with(every)).behaviour.verify.unwrap();
        assert_eq!(wish.every, Duration::from_secs(seconds), "{every}");
        assert_eq!(wish.rate, ResyncRate::Percent(20));
    }
    for wrong in ["0s", "10ms", "400d", "-1d", "week"] {
        let problems = problems(&with(wrong));
        assert!(problems[0].contains("as in \"7d\""), "{problems:?}");
    }
    let missing = MINIMAL.replacen("[mirror]\n", "[mirror]\nverify = { rate = \"max\" }\n", 1);
    assert!(problems(&missing)[0].contains("every is missing"));
}

#[test]
fn the_command_before_a_copy_is_a_program_with_its_arguments() {
    let with = |key: &str| MINIMAL.replacen("[mirror]\n", &format!("[mirror]\n{key}\n"), 1);
    let hook = parsed_ok(&with("before_resync = [\"/bin/snap\"]")).hook.unwrap();
    assert_eq!(hook.timeout, Duration::from_secs(60));
    for (key, expected) in [
        ("before_resync = [\"snap\"]", "before_resync: snap is relative"),
        ("before_resync = []", "before_resync: is empty"),
        ("before_resync = \"/bin/snap vm1\"", "before_resync: is string, not an array"),
        ("before_resync_timeout = \"5s\"", "is for before_resync, which is missing"),
    ] {
        let problems = problems(&with(key));
        assert!(problems[0].contains(expected), "{problems:?}");
    }
}

const MINIMAL: &str = "[mirror]\nlocal = \"/a\"\nmetadata = \"/a.mirror\"\n\
                       [[mirror.remote]]\npath = \"/b\"\n";

#[test]
fn defaults_are_those_of_the_engine() {
    assert_eq!(parsed_ok(MINIMAL).behaviour, Behaviour::default());
}

#[test]
fn every_mistake_is_told_at_once() {
    let text = "[mirror]\nlocal = \"disk.img\"\nmode = \"asink\"\nlag = { seconds = 0 }\n\
                remote_timout = \"5s\"\nresync_rate = \"fast\"\n\
                [[mirror.remote]]\nurl = \"iscsi://far/iqn/0\"\n\
                [[mirror.remote]]\nchap_password_file = \"/x\"\n\
                [[mirror.remote]]\nurl = \"iscsi://u%secret@far/iqn.2026-11.org.example:a/0\"\n";
    assert_eq!(
        problems(text),
        [
            "vm1.toml:1: mirror: metadata is missing",
            "vm1.toml:2: mirror.local: disk.img is relative; a path that begins with / is needed",
            "vm1.toml:3: mirror.mode: \"asink\" is not known (allowed: sync, async)",
            "vm1.toml:4: mirror.lag.seconds: 0 is not allowed (above 0, up to 3600 is)",
            "vm1.toml:5: mirror.remote_timout: unknown key; did you mean remote_timeout?",
            "vm1.toml:6: mirror.resync_rate: \"fast\" is no rate (as in \"200mbit\", \"80%\" of what copies have been seen to carry, from 1% to 100%, or \"max\")",
            "vm1.toml:8: mirror.remote[0].url: target name \"iqn\": not an iqn., eui. or naa. name; \
             allowed is iqn.YYYY-MM.DOMAIN[:NAME], eui.… or naa.…",
            "vm1.toml:9: mirror.remote[1]: url or path is missing",
            "vm1.toml:12: mirror.remote[2].url: iscsi://u@far:3260/iqn.2026-11.org.example:a/0: a \
             configuration holds no password: leave it out of the URL, and put it into a file for \
             chap_password_file, or into LIBISCSI_CHAP_PASSWORD",
        ]
    );
}

#[test]
fn a_leg_is_taken_out_and_the_rest_stays() {
    let text = format!("# mine\n{}\n[[mirror.remote]]\npath = \"/c\" # third\n", FULL.trim());
    let legs = |text: &str| {
        let legs = parsed_ok(text).legs;
        legs.iter().map(|leg| leg.way.to_string()).collect::<Vec<_>>()
    };
    let all = legs(&text);
    for gone in 0..3 {
        let rest = without_leg(&text, gone);
        let mut expected = all.clone();
        expected.remove(gone);
        assert_eq!(legs(&rest), expected, "{rest}");
        assert!(rest.starts_with("# mine\n") && rest.contains("third") == (gone != 2), "{rest}");
    }
}

#[test]
fn a_password_is_never_shown() {
    let text =
        MINIMAL.replace("path = \"/b\"", "url = \"iscsi://u%hunter2@h/iqn.2026-11.a.b:c/0\"");
    assert!(!problems(&text).concat().contains("hunter2"));
}

#[test]
fn legs_are_one_to_three_and_no_two_the_same() {
    let none = "[mirror]\nlocal = \"/a\"\nmetadata = \"/a.mirror\"\n";
    assert_eq!(
        problems(none),
        ["vm1.toml:1: mirror: 0 legs ([[mirror.remote]]); a mirror has 1 to 3"]
    );
    let twice = format!("{MINIMAL}[[mirror.remote]]\npath = \"/a\"\n");
    assert_eq!(problems(&twice), ["vm1.toml:6: mirror.remote[1]: /a is there twice"]);
    let both = MINIMAL.replace(
        "path = \"/b\"",
        "path = \"/b\"\nurl = \"iscsi://far/iqn.2026-11.org.example:a/0\"",
    );
    assert_eq!(
        problems(&both),
        ["vm1.toml:6: mirror.remote[0].url: path is there as well: one of them"]
    );
    assert!(problems("[[portal]]\n")[0].contains("no table [mirror]"));
}
