//! The directory as clients see it: requests in, responses out, time by hand.

use std::time::Duration;

use super::super::message::{Notice, Request, Response, scn};
use super::super::pdu::{Function, Status};
use super::super::registration::{
    Callback, Entity, FoundTarget, Node, Portal, found_targets, node_type, targets_query,
};
use super::super::{Attr, PortalKey, Tag};
use super::settings::{DomainsFile, Limits, Settings};
use super::{Directory, Notification, Now, StoredError};

const DISK: &str = "iqn.2026-11.org.example:disk";
const OTHER: &str = "iqn.2026-11.org.example:other";
const HOST: &str = "iqn.2026-11.org.example:host";
const STRANGER: &str = "iqn.2026-11.org.example:stranger";
const CONTROL: &str = "iqn.2026-11.org.example:control";

fn at(seconds: u64) -> Now {
    Now { since_start: Duration::from_secs(seconds), unix_s: 1_000_000 + seconds }
}

fn portal(last: u8) -> PortalKey {
    PortalKey { address: [192, 0, 2, last].into(), port: 3260 }
}

fn entity(id: &str, names: &[&str], portals: &[u8]) -> Entity {
    let kind = if names == [HOST] || names == [STRANGER] {
        node_type::INITIATOR
    } else {
        node_type::TARGET
    };
    let node = |name: &&str| Node { name: (*name).into(), kind, alias: None, portals: None };
    let portals = portals.iter().map(|last| Portal { key: portal(*last), name: None });
    Entity {
        id: id.into(),
        period_s: 100,
        portals: portals.collect(),
        nodes: names.iter().map(node).collect(),
    }
}

fn directory(domains: &str) -> Directory {
    let file = DomainsFile::parse(domains).unwrap();
    let settings = Settings { control: [CONTROL.to_owned()].into(), ..Settings::default() };
    Directory::new(settings, &file)
}

/// Asks over the wire's own format.
fn ask(directory: &mut Directory, request: &Request, now: Now) -> Response {
    let (response, _) = directory.handle(&request.encode(7), now);
    Response::decode(&response.encode(7)).unwrap()
}

fn done(directory: &mut Directory, request: &Request, now: Now) -> Response {
    let response = ask(directory, request, now);
    assert_eq!(response.status, Status::SUCCESS, "{request:?}");
    response
}

fn register(directory: &mut Directory, entity: &Entity, now: Now) -> Response {
    done(directory, &entity.registration(None, None), now)
}

fn seen(directory: &mut Directory, by: &str) -> Vec<String> {
    let response = done(directory, &targets_query(by), at(0));
    found_targets(&response).unwrap().into_iter().map(|found| found.name).collect()
}

fn told(notifications: &[Notification]) -> Vec<(String, u32, String)> {
    let mut told = Vec::new();
    for notification in notifications {
        let Notice::Scn { events, .. } = &notification.notice else { panic!("{notification:?}") };
        for event in events {
            for name in event.names() {
                told.push((notification.node.clone(), event.bitmap, name.to_owned()));
            }
        }
    }
    told
}

fn watch(directory: &mut Directory, node: &str, bitmap: u32) {
    let mut request = Request::new(Function::SCN_REG, node);
    request.key.push(Attr::new_text(Tag::ISCSI_NAME, node));
    request.operating.push(Attr::new_number(Tag::SCN_BITMAP, bitmap));
    done(directory, &request, at(0));
}

fn members(function: Function, id: Option<u32>, names: &[&str]) -> Request {
    let mut request = Request::new(function, CONTROL);
    request.key.extend(id.map(|id| Attr::new_number(Tag::DD_ID, id)));
    let names = names.iter().map(|name| Attr::new_text(Tag::DD_MEMBER_NAME, name));
    request.operating.extend(names);
    request
}

#[test]
fn what_is_registered_is_found_with_its_portals_and_their_groups() {
    let mut directory = directory("");
    let mut ours = entity("home.example", &[DISK, OTHER], &[1, 2]);
    ours.nodes[0].alias = Some("Films".into());
    ours.nodes[1].portals = Some([portal(2)].into());
    let response = register(&mut directory, &ours, at(0));
    assert!(response.operating.contains(&Attr::new_number(Tag::REGISTRATION_PERIOD, 100)));
    let response = done(&mut directory, &targets_query(HOST), at(0));
    let both = vec![(portal(1), Some(1)), (portal(2), Some(1))];
    let one = vec![(portal(2), Some(1))];
    assert_eq!(
        found_targets(&response).unwrap(),
        [
            FoundTarget { name: DISK.into(), alias: Some("Films".into()), portals: both },
            FoundTarget { name: OTHER.into(), alias: None, portals: one },
        ]
    );
}

#[test]
fn a_registration_that_replaces_leaves_nothing_of_what_was() {
    let mut directory = directory("");
    register(&mut directory, &entity("home", &[DISK, OTHER], &[1, 2]), at(0));
    register(&mut directory, &entity("home", &[DISK], &[3]), at(1));
    let response = done(&mut directory, &targets_query(HOST), at(1));
    let found = found_targets(&response).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].portals, [(portal(3), Some(1))]);
    assert_eq!(directory.counts(), (1, 2));
}

#[test]
fn an_update_adds_and_changes_and_leaves_the_rest() {
    let mut directory = directory("");
    register(&mut directory, &entity("home", &[DISK], &[1]), at(0));
    let mut more = entity("home", &[OTHER], &[2]).registration(None, None);
    more.replace = false;
    more.source = Some(Attr::new_text(Tag::ISCSI_NAME, DISK));
    done(&mut directory, &more, at(0));
    assert_eq!(directory.counts(), (1, 4));
    assert_eq!(seen(&mut directory, HOST), [DISK, OTHER]);
}

#[test]
fn who_is_not_of_an_entity_changes_nothing_of_it() {
    let mut directory = directory("");
    register(&mut directory, &entity("home", &[DISK], &[1]), at(0));
    // Another's node or portal is not taken over.
    let thief = entity("thief", &[DISK], &[9]).registration(None, None);
    assert_eq!(ask(&mut directory, &thief, at(0)).status, Status::INVALID_REGISTRATION);
    let thief = entity("thief", &[OTHER], &[1]).registration(None, None);
    assert_eq!(ask(&mut directory, &thief, at(0)).status, Status::INVALID_REGISTRATION);
    let mut thief = entity("home", &[OTHER], &[2]).registration(None, None);
    thief.source = Some(Attr::new_text(Tag::ISCSI_NAME, STRANGER));
    assert_eq!(ask(&mut directory, &thief, at(0)).status, Status::SOURCE_UNAUTHORIZED);
    let mut thief = entity("home", &[DISK], &[]).deregistration();
    thief.source = Some(Attr::new_text(Tag::ISCSI_NAME, STRANGER));
    assert_eq!(ask(&mut directory, &thief, at(0)).status, Status::SOURCE_UNAUTHORIZED);
    assert_eq!(
        ask(&mut directory, &members(Function::DD_REG, None, &[HOST]), at(0)).status,
        Status::SUCCESS
    );
    let mut thief = members(Function::DD_REG, Some(1), &[STRANGER]);
    thief.source = Some(Attr::new_text(Tag::ISCSI_NAME, STRANGER));
    assert_eq!(ask(&mut directory, &thief, at(0)).status, Status::SOURCE_UNAUTHORIZED);
    let mut nobody = targets_query(HOST);
    nobody.source = None;
    assert_eq!(ask(&mut directory, &nobody, at(0)).status, Status::SOURCE_ABSENT);
    let mut king = entity("king", &[STRANGER], &[5]);
    king.nodes[0].kind = node_type::CONTROL;
    let king = king.registration(None, None);
    assert_eq!(ask(&mut directory, &king, at(0)).status, Status::SOURCE_UNAUTHORIZED);
    assert_eq!(directory.counts(), (1, 2));
}

#[test]
fn nodes_of_a_domain_see_each_other_and_nobody_else() {
    let mut directory = directory(&format!(
        "[[domain]]\nname = \"family\"\nmembers = [\"{}\", \"{HOST}\"]\n",
        DISK.to_uppercase().replace("IQN.", "iqn.")
    ));
    register(&mut directory, &entity("home", &[DISK], &[1]), at(0));
    register(&mut directory, &entity("club", &[OTHER], &[2]), at(0));
    assert_eq!(seen(&mut directory, HOST), [DISK]);
    assert_eq!(seen(&mut directory, STRANGER), [OTHER], "those in no domain see each other");
    assert_eq!(seen(&mut directory, CONTROL), [OTHER, DISK], "a control node sees all");
    // The file's domain is the operator's.
    let change = members(Function::DD_REG, Some(1), &[STRANGER]);
    assert_eq!(ask(&mut directory, &change, at(0)).status, Status::SOURCE_UNAUTHORIZED);
    let response =
        done(&mut directory, &members(Function::DD_REG, None, &[STRANGER, OTHER, HOST]), at(0));
    let id = response.operating.iter().find(|attr| attr.tag == Tag::DD_ID).unwrap().number();
    assert_eq!(seen(&mut directory, HOST), [OTHER, DISK]);
    done(&mut directory, &members(Function::DD_DEREG, id.clone().ok(), &[HOST]), at(0));
    assert_eq!(seen(&mut directory, HOST), [DISK]);
    assert_eq!(seen(&mut directory, STRANGER), [OTHER]);
    done(&mut directory, &members(Function::DD_DEREG, id.ok(), &[]), at(0));
    assert_eq!(seen(&mut directory, STRANGER), [OTHER], "by the default domain again");
}

#[test]
fn without_a_default_domain_nobody_sees_anybody_by_it() {
    let mut directory = directory("default_domain = false");
    register(&mut directory, &entity("home", &[DISK], &[1]), at(0));
    assert_eq!(seen(&mut directory, HOST), [""; 0]);
    assert_eq!(seen(&mut directory, DISK), [DISK], "a node sees its own entity");
}

#[test]
fn a_domain_counts_while_one_of_its_sets_is_enabled() {
    let mut directory = directory("");
    register(&mut directory, &entity("home", &[DISK], &[1]), at(0));
    done(&mut directory, &members(Function::DD_REG, None, &[DISK, HOST]), at(0));
    let mut set = Request::new(Function::DDS_REG, CONTROL);
    set.operating = vec![Attr::new_number(Tag::DD_ID, 1), Attr::new_number(Tag::DDS_STATUS, 0)];
    let response = done(&mut directory, &set, at(0));
    assert_eq!(seen(&mut directory, HOST), [""; 0]);
    set.key = vec![response.operating.iter().find(|attr| attr.tag == Tag::DDS_ID).unwrap().clone()];
    set.operating = vec![Attr::new_number(Tag::DDS_STATUS, 1)];
    done(&mut directory, &set, at(0));
    assert_eq!(seen(&mut directory, HOST), [DISK]);
}

#[test]
fn an_entity_that_is_not_heard_of_is_gone_after_its_period() {
    let mut directory = directory("");
    register(&mut directory, &entity("home", &[DISK], &[1]), at(0));
    directory.tick(at(100));
    assert_eq!(seen(&mut directory, HOST), [DISK]);
    // Any message of its nodes renews it.
    let ours = entity("home", &[DISK], &[1]);
    assert!(ours.is_in(&done(&mut directory, &ours.renewal(), at(100))));
    directory.tick(at(200));
    assert_eq!(seen(&mut directory, HOST), [DISK]);
    directory.tick(at(201));
    assert_eq!(seen(&mut directory, HOST), [""; 0]);
    assert!(!ours.is_in(&done(&mut directory, &ours.renewal(), at(202))));
    assert_eq!(directory.counts(), (0, 0));
}

#[test]
fn portals_that_do_not_answer_inquiries_are_gone_before_the_second_interval_is_over() {
    let mut directory = directory("");
    let ours = entity("home", &[DISK], &[1, 2]);
    let callback = Some(Callback { port: 40_000, esi_interval_s: Some(20) });
    done(&mut directory, &ours.registration(callback, Some(portal(2))), at(0));
    assert!(directory.tick(at(19)).is_empty());
    let asked = directory.tick(at(20));
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].callback, PortalKey { port: 40_000, ..portal(2) });
    let Notice::Esi { attrs } = &asked[0].notice else { panic!() };
    directory.answered(attrs, at(22));
    assert!(directory.tick(at(41)).is_empty());
    let times = [42, 47, 52, 57].map(|second| directory.tick(at(second)).len());
    assert_eq!(times, [1, 1, 1, 1]);
    assert_eq!(directory.counts(), (1, 3));
    assert!(directory.tick(at(62)).is_empty());
    assert_eq!(directory.counts(), (0, 0), "the last portal that was asked takes the entity along");
}

#[test]
fn who_registered_for_it_is_told_of_what_it_sees_and_of_nothing_twice() {
    let mut directory = directory("");
    register(&mut directory, &entity("pc", &[HOST], &[7]), at(0));
    watch(&mut directory, HOST, scn::EVENTS);
    register(&mut directory, &entity("home", &[DISK], &[1]), at(0));
    let of = |event| vec![(HOST.to_owned(), event, DISK.to_owned())];
    assert_eq!(told(&directory.take_notifications()), of(scn::OBJECT_ADDED));
    register(&mut directory, &entity("home", &[DISK], &[1]), at(1));
    assert_eq!(told(&directory.take_notifications()), [], "the same again is no change");
    register(&mut directory, &entity("home", &[DISK], &[2]), at(1));
    assert_eq!(told(&directory.take_notifications()), of(scn::OBJECT_UPDATED));
    directory.tick(at(102));
    assert_eq!(directory.counts(), (0, 0));
    directory.take_notifications();
    register(&mut directory, &entity("pc", &[HOST], &[7]), at(103));
    watch(&mut directory, HOST, scn::OBJECT_REMOVED);
    register(&mut directory, &entity("home", &[DISK], &[1]), at(103));
    done(&mut directory, &entity("home", &[DISK], &[1]).deregistration(), at(103));
    assert_eq!(told(&directory.take_notifications()), of(scn::OBJECT_REMOVED));
    done(&mut directory, &members(Function::DD_REG, None, &[DISK]), at(103));
    register(&mut directory, &entity("home", &[DISK], &[1]), at(103));
    done(&mut directory, &entity("home", &[DISK], &[1]).deregistration(), at(103));
    assert_eq!(told(&directory.take_notifications()), [], "who does not see it is not told");
}

#[test]
fn members_are_told_of_who_comes_into_their_domain() {
    let mut directory = directory("");
    register(&mut directory, &entity("pc", &[HOST], &[7]), at(0));
    watch(&mut directory, HOST, scn::DD_MEMBER_ADDED | scn::DD_MEMBER_REMOVED);
    register(&mut directory, &entity("home", &[DISK], &[1]), at(0));
    done(&mut directory, &members(Function::DD_REG, None, &[HOST]), at(0));
    directory.take_notifications();
    done(&mut directory, &members(Function::DD_REG, Some(1), &[DISK]), at(0));
    let of = |event| vec![(HOST.to_owned(), event, DISK.to_owned())];
    assert_eq!(told(&directory.take_notifications()), of(scn::DD_MEMBER_ADDED));
    done(&mut directory, &members(Function::DD_DEREG, Some(1), &[DISK]), at(0));
    assert_eq!(told(&directory.take_notifications()), of(scn::DD_MEMBER_REMOVED));
}

#[test]
fn every_object_is_gone_through_once() {
    let mut directory = directory("");
    register(&mut directory, &entity("b", &[DISK], &[1]), at(0));
    register(&mut directory, &entity("a", &[OTHER], &[2]), at(0));
    let mut request = Request::new(Function::DEV_GET_NEXT, HOST);
    request.key.push(Attr::empty(Tag::ISCSI_NAME));
    request.operating.push(Attr::empty(Tag::NODE_TYPE));
    let mut names = Vec::new();
    loop {
        let response = ask(&mut directory, &request, at(0));
        if response.status == Status::NO_SUCH_ENTRY {
            break;
        }
        assert_eq!(response.operating, [Attr::new_number(Tag::NODE_TYPE, node_type::TARGET)]);
        names.push(response.key[0].text().unwrap().to_owned());
        request.key = response.key;
    }
    assert_eq!(names, [DISK, OTHER]);
    request.key = vec![Attr::empty(Tag::ISCSI_NAME)];
    request.operating.clear();
    let all = done(&mut directory, &request, at(0)).operating;
    assert!(all.contains(&Attr::new_text(Tag::ISCSI_NAME, DISK)), "all that is known: {all:?}");
}

#[test]
fn queries_by_entity_portal_and_domain_follow_the_relations() {
    let mut directory = directory("");
    register(&mut directory, &entity("home", &[DISK, OTHER], &[1, 2]), at(0));
    done(&mut directory, &members(Function::DD_REG, None, &[DISK, HOST]), at(0));
    let mut ask_for = |source: &str, key: &[Attr], tags: &[Tag]| {
        let mut request = Request::new(Function::DEV_ATTR_QRY, source);
        request.key = key.to_vec();
        request.operating = tags.iter().map(|tag| Attr::empty(*tag)).collect();
        let response = done(&mut directory, &request, at(0));
        assert_eq!(response.key, key);
        response.operating
    };
    let name = |name| Attr::new_text(Tag::ISCSI_NAME, name);
    let by_portal = Attr::portal(portal(1));
    assert_eq!(ask_for(CONTROL, &by_portal, &[Tag::ISCSI_NAME]), [name(DISK), name(OTHER)]);
    assert_eq!(ask_for(HOST, &by_portal, &[Tag::ISCSI_NAME]), [name(DISK)]);
    assert_eq!(ask_for(STRANGER, &by_portal, &[Tag::ISCSI_NAME]), [name(OTHER)]);
    let domain = [Attr::new_number(Tag::DD_ID, 1)];
    let member = |name| Attr::new_text(Tag::DD_MEMBER_NAME, name);
    assert_eq!(ask_for(HOST, &domain, &[Tag::DD_MEMBER_NAME]), [member(DISK), member(HOST)]);
    assert_eq!(ask_for(HOST, &domain, &[Tag::ISCSI_NAME]), [name(DISK)], "those registered");
    assert_eq!(ask_for(STRANGER, &domain, &[Tag::DD_MEMBER_NAME]), []);
    let id = [Attr::new_text(Tag::ENTITY_ID, "home")];
    assert_eq!(ask_for(HOST, &id, &[Tag::DD_ID]), domain);
    assert_eq!(ask_for(HOST, &[name(DISK)], &[Tag::ENTITY_ID]), id);
    let all = ask_for(HOST, &[name(DISK)], &[]);
    assert!(all.contains(&name(DISK)) && all.contains(&id[0]) && all.contains(&by_portal[0]));
    assert!(!all.contains(&name(OTHER)));
}

#[test]
fn limits_are_answers_and_change_nothing() {
    let limits = Limits { entities_max: 2, objects_max: 5, ..Limits::default() };
    let settings = Settings { limits, ..Settings::default() };
    let mut directory = Directory::new(settings, &DomainsFile::default());
    register(&mut directory, &entity("a", &[DISK], &[1, 2]), at(0));
    let large = entity("b", &[OTHER, HOST], &[3]).registration(None, None);
    assert_eq!(ask(&mut directory, &large, at(0)).status, Status::BUSY);
    assert_eq!(directory.counts(), (1, 3));
    register(&mut directory, &entity("b", &[OTHER], &[3]), at(0));
    let third = entity("c", &[STRANGER], &[]).registration(None, None);
    assert_eq!(ask(&mut directory, &third, at(0)).status, Status::BUSY);
    // What is there may be registered again at the limit.
    register(&mut directory, &entity("a", &[DISK], &[1, 2]), at(0));
}

#[test]
fn what_is_stored_is_the_same_afterwards() {
    let mut one = directory("");
    let mut ours = entity("home", &[DISK, OTHER], &[1, 2]);
    ours.nodes[0].alias = Some("Films".into());
    ours.nodes[1].portals = Some([portal(2)].into());
    register(&mut one, &ours, at(0));
    register(&mut one, &entity("pc", &[HOST], &[7]), at(0));
    watch(&mut one, HOST, scn::EVENTS);
    done(&mut one, &members(Function::DD_REG, None, &[DISK, HOST]), at(0));
    let mut set = Request::new(Function::DDS_REG, CONTROL);
    set.operating = vec![Attr::new_number(Tag::DD_ID, 1), Attr::new_number(Tag::DDS_STATUS, 1)];
    done(&mut one, &set, at(0));
    let stored = one.store();
    let mut other = directory("");
    assert_eq!(other.restore(&stored, at(0)).unwrap(), []);
    assert_eq!(other.store(), stored);
    let query = targets_query(HOST);
    assert_eq!(ask(&mut other, &query, at(0)), ask(&mut one, &query, at(0)));
    assert_eq!(other.take_notifications(), []);
    // Numbers go on, and a registration has its whole period again.
    assert_eq!(other.next_index, one.next_index);
    other.tick(at(99));
    assert_eq!(other.counts(), one.counts());
    assert_eq!(directory("").restore(b"something else", at(0)), Err(StoredError::Magic));
    assert!(matches!(
        directory("").restore(&stored[..stored.len() - 1], at(0)),
        Err(StoredError::Cut(_))
    ));
}

#[test]
fn what_does_not_fit_any_more_is_left_out_and_told() {
    let mut one = directory("");
    register(&mut one, &entity("a", &[DISK], &[1]), at(0));
    register(&mut one, &entity("b", &[OTHER], &[2]), at(0));
    let limits = Limits { entities_max: 1, ..Limits::default() };
    let settings = Settings { limits, ..Settings::default() };
    let mut other = Directory::new(settings, &DomainsFile::default());
    let left_out = other.restore(&one.store(), at(0)).unwrap();
    assert_eq!(
        left_out.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["message 2 (DevAttrReg): busy (status 12)"]
    );
}

#[test]
fn what_tgt_sends_is_understood() {
    // Names without NUL where their length is a multiple of four, a delimiter behind the source of
    // a deregistration, and a deregistration of notifications after its node is gone.
    let raw = |tag: Tag, text: &str| {
        let mut value = text.as_bytes().to_vec();
        value.resize(value.len().next_multiple_of(4), 0);
        Attr { tag, value: value.into() }
    };
    let name = "iqn.2026-11.org.example:diskette";
    assert_eq!(name.len() % 4, 0);
    let mut directory = directory("");
    let mut request = Request::new(Function::DEV_ATTR_REG, name);
    request.replace = true;
    request.source = Some(raw(Tag::ISCSI_NAME, name));
    request.key = vec![raw(Tag::ENTITY_ID, "localhost")];
    request.operating =
        vec![raw(Tag::ENTITY_ID, "localhost"), Attr::new_number(Tag::ENTITY_PROTOCOL, 2)];
    request.operating.extend(Attr::portal(portal(1)));
    request.operating.push(Attr::new_number(Tag::SCN_PORT, 40_001));
    request.operating.push(raw(Tag::ISCSI_NAME, name));
    request.operating.push(Attr::new_number(Tag::NODE_TYPE, node_type::TARGET));
    let response = done(&mut directory, &request, at(0));
    let period = response.operating.iter().find(|attr| attr.tag == Tag::REGISTRATION_PERIOD);
    assert_eq!(period.unwrap().number(), Ok(600), "one is chosen for who asks for none");
    assert_eq!(seen(&mut directory, HOST), [name]);
    let found = done(&mut directory, &targets_query(HOST), at(0));
    assert!(found.operating.iter().all(|attr| attr.value.len() % 4 == 0), "tgt reads no others");
    let mut request = Request::new(Function::DEV_DEREG, name);
    request.operating = vec![raw(Tag::ISCSI_NAME, name)];
    done(&mut directory, &request, at(0));
    let mut request = Request::new(Function::SCN_DEREG, name);
    request.key = vec![raw(Tag::ISCSI_NAME, name)];
    done(&mut directory, &request, at(0));
    assert_eq!(seen(&mut directory, HOST), [""; 0]);
}

#[test]
fn wrong_files_of_domains_say_what_is_allowed() {
    let wrong = |text: &str| DomainsFile::parse(text).unwrap_err();
    assert!(wrong("[[domain]]\nname = \"a\"\nmembers = [\"disk\"]").contains("is no iSCSI name"));
    assert!(wrong("[[domain]]\nname = \"a\"").contains("members"));
    assert!(wrong("[[domains]]").contains("domain"));
    let twice = "[[domain]]\nname = \"a\"\nmembers = []\n".repeat(2);
    assert!(wrong(&twice).contains("two domains \"a\""));
}
