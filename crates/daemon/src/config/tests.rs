//! The configuration file: what is read, and every error with its place.

use std::path::Path;

use super::*;

const GOOD: &str = r#"
[[portal]]
name = "lan"
listen = "127.0.0.1:3260"

[[target]]
name = "iqn.2026-11.org.example:a"
anyone = true

[[target.lun]]
number = 0
path = "mem:64M"
"#;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("t.toml"), text)
}

/// The problems of a text, one a line.
fn problems(text: &str) -> Vec<String> {
    parse(text).err().map_or_else(Vec::new, |ConfigError(problems)| {
        problems.iter().map(ToString::to_string).collect()
    })
}

/// The one problem that `more` brings into a good configuration.
fn problem_of(more: &str) -> String {
    let problems = problems(&format!("{GOOD}{more}"));
    assert_eq!(problems.len(), 1, "{problems:?}");
    problems[0].clone()
}

#[test]
fn a_small_file_has_sensible_defaults() {
    let config = parse(GOOD).unwrap();
    let target = &config.targets["iqn.2026-11.org.example:a"];
    assert_eq!(target.luns[&0].backing, Backing::Memory(64 << 20));
    assert!(target.luns[&0].thin && target.luns[&0].write_cache);
    assert!(target.access.rule("iqn.2026-11.org.example:anybody").is_some());
    assert_eq!(config.server.metrics, None);
    assert_eq!(config.server.shutdown_timeout, Duration::from_secs(10));
    assert_eq!(config.portals[0].1.listen.port(), 3260);
}

#[test]
fn the_example_is_valid_but_for_its_password_files() {
    let text = include_str!("../../../../contrib/target.toml");
    let problems = problems(text);
    assert!(!problems.is_empty());
    for problem in &problems {
        assert!(problem.contains("password_file: cannot read"), "{problem}");
    }
}

#[test]
fn one_mistake_each() {
    for (more, wanted) in [
        (
            "[server]\nlgo = \"info\"\n",
            "t.toml:14: server.lgo: unknown key (allowed here: admin_socket, congestion_control, log, mirror_directory, shutdown_timeout, state_directory)",
        ),
        (
            "[server]\nstate_dir = \"/x\"\n",
            "t.toml:14: server.state_dir: unknown key; did you mean state_directory?",
        ),
        (
            "[server]\nadmin_sokcet = \"/x\"\n",
            "t.toml:14: server.admin_sokcet: unknown key; did you mean admin_socket?",
        ),
        (
            "[limits]\nlogin_timeout = 15\n",
            "t.toml:14: limits.login_timeout: is integer, not a time, as in \"20ms\"",
        ),
        (
            "[limits]\nlogin_timeout = \"15\"\n",
            "t.toml:14: limits.login_timeout: time \"15\": has no unit",
        ),
        (
            "[limits]\nmemory = \"1M\"\n",
            "t.toml:14: limits.memory: 1048576 bytes are not allowed (134217728 to",
        ),
        (
            "[limits]\nsessions = 0\n",
            "t.toml:14: limits.sessions: 0 is not allowed (a number from 1 to 32767 is)",
        ),
        (
            "[limits]\nsessions = 32767\nmemory = \"1G\"\n",
            "t.toml:15: limits.memory: leaves 16384 bytes for each of 32767 sessions",
        ),
        (
            "[parameters]\nheader_digest = \"yes\"\n",
            "t.toml:14: parameters.header_digest: \"yes\" is not known (allowed: never, avoid, prefer, require)",
        ),
        (
            "[parameters]\nfirst_burst_length = \"1M\"\nmax_burst_length = \"64k\"\n",
            "t.toml:13: parameters: first_burst_length 1048576 is above max_burst_length 65536",
        ),
        ("[discovery]\nchap = \"x\"\n", "t.toml:14: discovery.chap: there is no [chap.x]"),
        (
            "[metrics]\nlisten = \"9260\"\n",
            "t.toml:14: metrics.listen: \"9260\" is not an address with a port",
        ),
        ("[metrics]\n", "t.toml:13: metrics: listen is missing"),
        ("[server]\nlog = \"loud\"\n", "t.toml:14: server.log: \"loud\" is not a log level"),
        (
            "[[portal]]\nname = \"lan\"\nlisten = \"127.0.0.1:3261\"\n",
            "t.toml:15: portal[1].listen: there is a portal lan on 127.0.0.1:3260 already, in t.toml:4",
        ),
        (
            "[[portal]]\nlisten = \"[::]:3260\"\n",
            "t.toml:14: portal[1].listen: there is a portal lan on 127.0.0.1:3260 already, in t.toml:4",
        ),
        (
            "[[portal]]\nlisten = \"127.0.0.1:3261\"\npoll = \"1s\"\n",
            "t.toml:15: portal[1].poll: \"1s\" is not allowed (above 0, up to 10ms is)",
        ),
        (
            "[[target.lun]]\nnumber = 0\npath = \"mem:1M\"\n",
            "t.toml:14: target[0].lun[1].number: there is a LUN 0 already, in t.toml:12",
        ),
        (
            "[[target.lun]]\nnumber = 1\npath = \"mem:1X\"\n",
            "t.toml:15: target[0].lun[1].path: size \"1X\"",
        ),
        (
            "[[target.lun]]\nnumber = 99999\npath = \"mem:1M\"\n",
            "t.toml:14: target[0].lun[1].number: 99999 is not allowed (a number from 0 to 16383 is)",
        ),
        (
            "[[target.initiator]]\nname = \"host\"\n",
            "t.toml:14: target[0].initiator[0].name: \"host\": not an iqn., eui. or naa. name",
        ),
        (
            "[[target.initiator]]\nname = \"iqn.2026-11.org.example:h\"\nread_only = [3]\n",
            "t.toml:15: target[0].initiator[0].read_only: there is no LUN 3",
        ),
        (
            "[[target]]\nname = \"iqn.2026-11.org.example:b\"\n[[target.lun]]\nnumber = 0\npath = \"mem:1M\"\n",
            "t.toml:13: target[1]: admits nobody",
        ),
        ("[chap.x]\nuser = \"u\"\n", "t.toml:13: chap.x: password_file or password_env is missing"),
        (
            "[chap.x]\nuser = \"u\"\npassword = \"secretsecret\"\npassword_env = \"PATH\"\n",
            "t.toml:15: chap.x.password: unknown key; did you mean password_env?",
        ),
        (
            "[chap.x]\nuser = \"u\"\npassword_env = \"NO_SUCH_VARIABLE_HERE\"\n",
            "t.toml:15: chap.x.password_env: there is no variable NO_SUCH_VARIABLE_HERE",
        ),
    ] {
        let problem = problem_of(more);
        assert!(problem.starts_with(wanted), "{more}\n{problem}");
    }
}

#[test]
fn all_mistakes_at_once_in_the_order_of_their_lines() {
    let text = "[limits]\nsessions = \"many\"\ntypo = 1\n[[target]]\nname = \"x\"\n[[target.lun]]\n\
                path = \"\"\n[[portal]]\nlisten = 3260\n";
    let problems = problems(text);
    let places: Vec<&str> =
        problems.iter().map(|problem| problem.split(": ").nth(1).unwrap()).collect();
    let wanted = [
        "limits.sessions",
        "limits.typo",
        "target[0].name",
        "target[0].lun[0]",
        "target[0].lun[0].path",
        "portal[0].listen",
    ];
    for place in wanted {
        assert!(places.contains(&place), "{place} not in {problems:#?}");
    }
}

#[test]
fn what_is_no_toml_has_a_line_too() {
    let problems = problems("[server]\nlog = \n");
    assert_eq!(problems.len(), 1);
    assert!(problems[0].starts_with("t.toml:2: "), "{problems:?}");
}

#[test]
fn a_file_behind_two_luns_is_refused() {
    let more =
        "[[target.lun]]\nnumber = 1\npath = \"/d\"\n[[target.lun]]\nnumber = 2\npath = \"/d\"\n";
    let wanted = "is behind LUN 1 of iqn.2026-11.org.example:a already";
    assert!(problem_of(more).contains(wanted));
}

#[test]
fn secrets_come_from_files_and_are_never_shown() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    std::fs::write(&path, "correct-horse-77\nignored\n").unwrap();
    for (mode, warnings) in [(0o600, 0), (0o644, 1)] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let more = format!(
            "[chap.x]\nuser = \"u\"\npassword_file = {path:?}\n[discovery]\nchap = \"x\"\n"
        );
        let config = parse(&format!("{GOOD}{more}")).unwrap();
        assert_eq!(config.warnings.len(), warnings, "{:?}", config.warnings);
        assert!(config.discovery.is_some());
        assert!(!format!("{config:?}").contains("correct-horse"));
    }
    std::fs::write(&path, "short\n").unwrap();
    let more = format!("[chap.x]\nuser = \"u\"\npassword_file = {path:?}\n");
    let problem = problem_of(&more);
    assert!(problem.contains("a secret of 5 bytes is too short") && !problem.contains("short\""));
}

proptest::proptest! {
    #[test]
    fn no_text_panics(text in "\\PC*") {
        let _ = parse(&text);
    }

    #[test]
    fn no_damage_panics(at in 0..GOOD.len(), byte in 0u8..128) {
        let mut bytes = GOOD.as_bytes().to_vec();
        bytes[at] = byte;
        let _ = parse(&String::from_utf8(bytes).unwrap());
    }
}

#[test]
fn a_congestion_control_is_one_that_the_kernel_has() {
    let file = |name: &str| format!("[server]\ncongestion_control = \"{name}\"\n");
    let of = |name: &str| problems(&file(name)).join("\n");
    let wrong = of("vegsa");
    assert!(wrong.contains("t.toml:2: server.congestion_control: \"vegsa\""), "{wrong}");
    assert!(wrong.contains("(auto, system, "), "{wrong}");
    for right in ["auto", "system", "reno"] {
        let other = of(right); // there is no portal, but that is all
        assert!(!other.contains("congestion_control"), "{other}");
    }
}

#[test]
fn an_isns_server_has_its_own_port_and_its_mistakes_have_places() {
    let server = |text: &str| {
        let config = parse(&format!("{GOOD}\n[isns]\nserver = \"{text}\"\n")).unwrap();
        config.isns.unwrap().server
    };
    assert_eq!(server("isns.example.org"), "isns.example.org:3205");
    assert_eq!(server("isns.example.org:3206"), "isns.example.org:3206");
    assert_eq!(server("[2001:db8::1]"), "[2001:db8::1]:3205");
    assert_eq!(server("[2001:db8::1]:3206"), "[2001:db8::1]:3206");
    let more = "\n[isns]\nserver = \"h\"\nentity = \"home\"\nesi_interval = \"20s\"\ndomains = [\"family\"]\n";
    let isns = parse(&format!("{GOOD}{more}")).unwrap().isns.unwrap();
    assert_eq!(
        (isns.entity.as_deref(), isns.esi_interval),
        (Some("home"), Some(Duration::from_secs(20)))
    );
    assert_eq!(isns.domains, ["family"]);
    assert!(problem_of("\n[isns]\n").contains("server is missing"));
    assert!(
        problem_of("\n[isns]\nserver = \"a b\"\n").contains("isns.server: \"a b\" is not a host")
    );
    assert!(problem_of("\n[isns]\nserver = \"h\"\nperiod = 3\n").contains("unknown key"));
}

#[test]
fn an_uplink_has_keys_and_a_name_that_targets_may_use_as_that_of_a_portal() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("uplink.key");
    std::fs::write(&key, &*::uplink::Identity::generate().unwrap()).unwrap();
    let key = key.display();
    let pin = "ab".repeat(32);
    let section = |name: &str, server: &str, pin: &str| {
        format!(
            "\n[[uplink]]\nname = \"{name}\"\nserver = \"{server}\"\npin = \"{pin}\"\nkey_file = \"{key}\"\n"
        )
    };
    let alone = GOOD.replace("[[portal]]\nname = \"lan\"\nlisten = \"127.0.0.1:3260\"\n", "");
    let alone = alone.replace("anyone = true", "anyone = true\nportals = [\"films\"]");
    let config = parse(&format!("{alone}{}", section("films", "films.example", &pin))).unwrap();
    assert!(config.portals.is_empty());
    assert_eq!(
        (&*config.uplinks[0].server, config.uplinks[0].pin.to_string()),
        ("films.example:3270", pin.clone())
    );
    for (text, what) in [
        (section("lan", "films.example", &pin), "a portal or uplink called \"lan\" already"),
        (section("a b", "films.example", &pin), "uplink[0].name: is no name"),
        (section("films", "a b", &pin), "uplink[0].server: \"a b\" is not a host"),
        (section("films", "films.example", "abc"), "64 hexadecimal digits"),
        (
            section("films", "h", &pin).replace("uplink.key", "none.key"),
            "uplink[0].key_file: cannot read",
        ),
        (section("films", "h", &pin).replace("key_file", "key"), "unknown key"),
    ] {
        let problems = problems(&format!("{GOOD}{text}")).join("\n");
        assert!(problems.contains(what), "{what}: {problems}");
    }
}

#[test]
fn limits_are_of_initiators_and_units_and_inherited_as_a_whole() {
    let file = GOOD
        .replace("anyone = true", "anyone = true\nmax_rate = \"80mbit\"\nburst = \"1s\"")
        .replace("path = \"mem:64M\"", "path = \"mem:64M\"\nmax_iops = 5000");
    let own = "[[target.initiator]]\nname = \"iqn.2026-11.org.example:own\"\nmax_iops = 7\n\
               [[target.initiator]]\nname = \"iqn.2026-11.org.example:other\"\n";
    let config = parse(&format!("{file}{own}")).unwrap();
    let target = &config.targets["iqn.2026-11.org.example:a"];
    let of = |name: &str| {
        let rule = target.access.rule(&format!("iqn.2026-11.org.example:{name}"));
        rule.map(|rule| rule.limit).unwrap()
    };
    let each = Limit::new(Some(10_000_000), None).with_burst(Duration::from_secs(1));
    assert_eq!((of("other"), of("anybody")), (each, each));
    assert_eq!(of("own"), Limit::new(None, Some(7)), "nothing of the target's");
    assert_eq!(target.lun_limits[&0], Limit::new(None, Some(5000)));
    let unlimited = parse(GOOD).unwrap();
    assert!(unlimited.targets["iqn.2026-11.org.example:a"].lun_limits.is_empty());
}

#[test]
fn a_limit_that_limits_nothing_is_an_error() {
    for (more, what) in [
        ("burst = \"1s\"\n", "target[0].lun[0].burst: limits nothing by itself"),
        ("max_iops = 0\n", "max_iops: 0 is not allowed (a number from 1 to 1000000000 is)"),
        ("max_rate = \"100\"\n", "max_rate: rate \"100\": has no unit"),
        ("max_rate = \"32767bit\"\n", "max_rate: \"32767bit\" is not allowed"),
        ("max_iops = 1\nburst = \"0\"\n", "burst: \"0\" is not allowed (above 0, up to 3600s is)"),
    ] {
        let problem = problem_of(more);
        assert!(problem.contains(what), "{problem}");
    }
}

const A: &str = "iqn.2026-11.org.example:a";

/// What the good configuration says with drop-ins beside it, which are called 1.toml and so on.
fn with_drop_ins(texts: &[&str]) -> Result<Config, Vec<String>> {
    let main = Path::new("t.toml");
    let beside = sources::drop_in_folder(main);
    let files = texts.iter().enumerate();
    let all = files.fold(Sources::of_text(main, GOOD), |all, (index, text)| {
        all.with(&beside.join(format!("{}.toml", index + 1)), Some(text))
    });
    let read = Config::of(&all);
    read.map_err(|ConfigError(problems)| problems.iter().map(ToString::to_string).collect())
}

#[test]
fn drop_ins_add_to_what_the_main_file_says() {
    let lun = |number: u16| {
        format!(
            "[[target]]\nname = \"{A}\"\n[[target.lun]]\nnumber = {number}\npath = \"mem:1M\"\n"
        )
    };
    let host = format!(
        "[[target]]\nname = \"{A}\"\n[[target.initiator]]\nname = \"iqn.2026-11.a:host\"\n"
    );
    let other = "[[portal]]\nname = \"wan\"\nlisten = \"127.0.0.2:3260\"\n\
                 [server]\nlog = \"debug\"\n[[target]]\nname = \"iqn.2026-11.a:other\"\nanyone = false\n";
    let config = with_drop_ins(&[&lun(7), &host, other, "", &lun(1)]).unwrap();
    let target = &config.targets[A];
    assert_eq!(target.luns.keys().copied().collect::<Vec<u16>>(), [0, 1, 7]);
    assert_eq!(target.luns[&7].place.at(), "t.d/1.toml:5");
    assert_eq!(target.access_places.initiators["iqn.2026-11.a:host"].at(), "t.d/2.toml:4");
    assert_eq!(target.access_places.anyone.as_ref().unwrap().at(), "t.toml:8");
    assert_eq!((config.portals.len(), &*config.server.log), (2, "debug"));
    let empty = &config.targets["iqn.2026-11.a:other"];
    assert!(empty.luns.is_empty() && empty.access.rule("iqn.2026-11.a:host").is_none());
    assert_eq!(config.warnings.len(), 1, "{:?}", config.warnings);
    assert!(config.warnings[0].contains("t.d/3.toml:6: target[0]: has no logical unit"));
}

#[test]
fn no_target_yet_is_a_warning() {
    let config = parse("[[portal]]\nname = \"lan\"\nlisten = \"127.0.0.1:3260\"\n").unwrap();
    assert!(config.targets.is_empty());
    assert!(config.warnings[0].contains("no target: nothing is served"), "{:?}", config.warnings);
}

#[test]
fn what_two_files_say_is_told_with_both_places() {
    let of_a = |more: &str| format!("[[target]]\nname = \"{A}\"\n{more}");
    let host = "[[target.initiator]]\nname = \"iqn.2026-11.a:host\"\n";
    let chap = "[chap.op]\nuser = \"u\"\npassword_file = \"/dev/null\"\n";
    for (texts, wanted) in [
        (
            vec![of_a("[[target.lun]]\nnumber = 0\npath = \"mem:1M\"\n")],
            "t.d/1.toml:4: target[0].lun[0].number: there is a LUN 0 already, in t.toml:12",
        ),
        (
            vec![of_a("anyone = true\n")],
            "t.d/1.toml:3: target[0].anyone: is said in t.toml:8 already",
        ),
        (
            vec![of_a(host), of_a(host)],
            "t.d/2.toml:4: target[0].initiator[0].name: there is a rule for iqn.2026-11.a:host already, in t.d/1.toml:4",
        ),
        (
            vec!["[[portal]]\nname = \"lan\"\nlisten = \"127.0.0.2:3260\"\n".to_owned()],
            "t.d/1.toml:3: portal[0].listen: there is a portal lan on 127.0.0.1:3260 already, in t.toml:4",
        ),
        (
            vec!["[server]\nlog = \"info\"\n".into(), "[server]\nlog = \"info\"\n".into()],
            "t.d/2.toml:2: server.log: is said in t.d/1.toml:2 already",
        ),
        (
            vec![chap.to_owned(), "[chap.op]\nuser = \"v\"\n".to_owned()],
            "t.d/2.toml:2: chap.op.user: is said in t.d/1.toml:2 already",
        ),
        (
            vec![of_a("nayone = true\n")],
            "t.d/1.toml:3: target[0].nayone: unknown key; did you mean anyone?",
        ),
        (vec![of_a("") + &of_a("")], "t.d/1.toml:4: target[1].name: there is a target"),
        (vec!["[[target]\n".to_owned()], "t.d/1.toml:1: "),
    ] {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let problems = with_drop_ins(&texts).unwrap_err();
        assert!(problems.iter().any(|one| one.starts_with(wanted)), "{wanted}: {problems:?}");
    }
}

#[test]
fn a_unit_serves_alike_whatever_size_a_file_would_be_made_with() {
    let lun = |more: &str| {
        let target = "[[target]]\nname = \"iqn.2026-11.a:b\"\nanyone = true\n[[target.lun]]\n";
        let text = format!("{target}number = 0\npath = \"/x\"\n{more}");
        with_drop_ins(&[&text]).unwrap().targets["iqn.2026-11.a:b"].luns[&0].clone()
    };
    assert!(lun("create = \"1G\"\n").serves_alike(&lun("create = \"2G\"\n")));
    assert!(lun("create = \"1G\"\n").serves_alike(&lun("")));
    assert!(!lun("").serves_alike(&lun("read_only = true\n")));
}
