//! Reservations through commands: who is kept out, who is told, what is kept.

use std::sync::Mutex;

use super::*;

/// One unit and several initiators.
pub(super) struct Cluster {
    pub(super) target: Target,
    pub(super) nexuses: Vec<Nexus>,
}

/// CDB of PERSISTENT RESERVE OUT.
pub(super) fn prout(action: u8, kind: u8, list_len: usize) -> [u8; 10] {
    let len = (list_len as u32).to_be_bytes();
    [0x5f, action, kind, 0, 0, len[0], len[1], len[2], len[3], 0]
}

fn prin(action: u8) -> [u8; 10] {
    [0x5e, action, 0, 0, 0, 0, 0, 0x40, 0, 0]
}

fn port(who: usize) -> String {
    format!("iqn.2026-11.org.example:host{who},i,0x000000000001")
}

/// TransportID of an initiator port.
fn transport_id(port: &str) -> Vec<u8> {
    let len = (port.len() + 1).next_multiple_of(4);
    let mut id = vec![0x45, 0, 0, len as u8];
    id.extend(port.as_bytes());
    id.resize(4 + len, 0);
    id
}

fn basic_list(key: u64, service_key: u64, flags: u8) -> Vec<u8> {
    let mut list = key.to_be_bytes().to_vec();
    list.extend(service_key.to_be_bytes());
    list.extend([0, 0, 0, 0, flags, 0, 0, 0]);
    list
}

impl Cluster {
    pub(super) fn new(nexuses: usize) -> Self {
        Self::with_options(nexuses, LunOptions::default())
    }

    fn with_options(nexuses: usize, options: LunOptions) -> Self {
        let target = Target::new(TargetConfig::new(NAME));
        target.add_lun(0, Arc::new(MemoryDevice::new(1 << 20, 512).unwrap()), options).unwrap();
        let nexuses = (0..nexuses).map(|who| ready(target.nexus(&port(who)))).collect();
        Self { target, nexuses }
    }

    pub(super) fn out(&self, who: usize, action: u8, kind: u8, key: u64, service: u64) -> Response {
        let list = basic_list(key, service, 0);
        run_on(&self.nexuses[who], 0, &prout(action, kind, 24), list, 0)
    }

    pub(super) fn move_list(&self, key: u64, new_key: u64, to: usize, unregister: bool) -> Vec<u8> {
        let id = transport_id(&port(to));
        let mut list = key.to_be_bytes().to_vec();
        list.extend(new_key.to_be_bytes());
        list.extend([0, u8::from(unregister) << 1, 0, 1, 0, 0, 0, id.len() as u8]);
        list.extend(id);
        list
    }

    /// All unit attentions taken.
    pub(super) fn settle(&self) {
        for nexus in &self.nexuses {
            while run_on(nexus, 0, &[0; 6], "", 0).status == Status::CHECK_CONDITION {}
        }
    }

    fn attention(&self, who: usize) -> Option<(u8, u8)> {
        let sense = run_on(&self.nexuses[who], 0, &[0; 6], "", 0).sense?;
        assert_eq!(sense.key, SenseKey::UNIT_ATTENTION);
        Some((sense.additional.0, sense.additional.1))
    }

    fn input(&self, action: u8) -> Vec<u8> {
        let response = run_on(&self.nexuses[0], 0, &prin(action), "", 0x4000);
        assert_good(&response);
        response.data_in.to_vec()
    }

    pub(super) fn keys(&self) -> (u32, Vec<u64>) {
        let data = self.input(0);
        let keys = data[8..].chunks(8).map(|key| u64::from_be_bytes(key.try_into().unwrap()));
        assert_eq!(data[4..8], (data.len() as u32 - 8).to_be_bytes());
        (u32::from_be_bytes(data[..4].try_into().unwrap()), keys.collect())
    }

    pub(super) fn reservation(&self) -> Option<(u64, u8)> {
        let data = self.input(1);
        (data.len() > 8).then(|| (u64::from_be_bytes(data[8..16].try_into().unwrap()), data[21]))
    }

    /// May read, may write.
    pub(super) fn access(&self, who: usize) -> (bool, bool) {
        let nexus = &self.nexuses[who];
        let admitted = |response: Response| match response.status {
            Status::GOOD => true,
            Status::RESERVATION_CONFLICT => false,
            other => panic!("{other:?}"),
        };
        let read = run_on(nexus, 0, &cdb(0x28, 0, 0, 1), "", 512);
        let write = run_on(nexus, 0, &cdb(0x2a, 0, 0, 1), vec![0; 512], 0);
        (admitted(read), admitted(write))
    }
}

fn assert_conflict(response: &Response) {
    assert_eq!(response.status, Status::RESERVATION_CONFLICT, "{response:?}");
}

#[test]
fn every_command_is_sorted() {
    // Commands of a nexus that is not registered, under Write Exclusive and Exclusive Access.
    let cases: &[(&[u8], bool, bool)] = &[
        (&[0x00, 0, 0, 0, 0, 0], true, true),
        (&[0x03, 0, 0, 0, 18, 0], true, true),
        (&[0x12, 0, 0, 0, 96, 0], true, true),
        (&[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0], true, true),
        (&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], true, true),
        (&[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0], true, true),
        (&[0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], true, true),
        (&[0x1b, 0, 0, 0, 1, 0], true, true),
        (&[0x1b, 0, 0, 0, 0, 0], false, false),
        (&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], true, false),
        (&[0x2f, 0, 0, 0, 0, 0, 0, 0, 1, 0], true, false),
        (&[0x34, 0, 0, 0, 0, 0, 0, 0, 1, 0], true, false),
        (&[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], false, false),
        (&[0x1a, 0, 0x3f, 0, 255, 0], false, false),
        (&[0x15, 0x10, 0, 0, 0, 0], false, false),
        (&[0x1d, 4, 0, 0, 0, 0], false, false),
        (&[0x16, 0, 0, 0, 0, 0], false, false),
        (&[0x17, 0, 0, 0, 0, 0], false, false),
        (&[0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0], false, false),
    ];
    let cluster = Cluster::new(2);
    assert_good(&cluster.out(0, 0, 0, 0, 1));
    for (kind, exclusive) in [(1, false), (3, true)] {
        assert_good(&cluster.out(0, 1, kind, 1, 0));
        for (cdb, under_write, under_all) in cases {
            let response = run_on(&cluster.nexuses[1], 0, cdb, "", 512);
            let allowed = if exclusive { *under_all } else { *under_write };
            let conflict = response.status == Status::RESERVATION_CONFLICT;
            assert_eq!(conflict, !allowed, "{cdb:x?} under {kind}");
        }
        assert_good(&cluster.out(0, 2, kind, 1, 0));
    }
}

#[test]
fn those_concerned_are_told() {
    let cluster = Cluster::new(3);
    let register_all = || {
        cluster.settle();
        for who in 0..3 {
            assert_good(&cluster.out(who, 6, 0, 0, who as u64 + 1));
        }
    };
    register_all();
    // Released: those who had access by being registered.
    assert_good(&cluster.out(0, 1, 5, 1, 0));
    assert_good(&cluster.out(0, 2, 5, 1, 0));
    assert_eq!(
        [0, 1, 2].map(|who| cluster.attention(who)),
        [None, Some((0x2a, 4)), Some((0x2a, 4))]
    );
    assert_good(&cluster.out(0, 1, 1, 1, 0));
    assert_good(&cluster.out(0, 2, 1, 1, 0));
    assert_eq!([0, 1, 2].map(|who| cluster.attention(who)), [None; 3]);
    // Preempted, and the type changed.
    assert_good(&cluster.out(0, 1, 5, 1, 0));
    assert_good(&cluster.out(1, 4, 6, 2, 1));
    assert_eq!(
        [0, 1, 2].map(|who| cluster.attention(who)),
        [Some((0x2a, 5)), None, Some((0x2a, 4))]
    );
    register_all();
    assert_good(&cluster.out(2, 3, 0, 3, 0));
    assert_eq!(
        [0, 1, 2].map(|who| cluster.attention(who)),
        [Some((0x2a, 3)), Some((0x2a, 3)), None]
    );
}

#[test]
fn registering_for_others() {
    let cluster = Cluster::new(3);
    let register = |who: usize, ids: &[Vec<u8>], flags| {
        let mut list = basic_list(0, 7, flags);
        let ids = ids.concat();
        list.extend((ids.len() as u32).to_be_bytes());
        list.extend(ids);
        run_on(&cluster.nexuses[who], 0, &prout(0, 0, list.len()), list, 0)
    };
    let ids = [transport_id(&port(1)), transport_id(&port(9))];
    let at = 28 + ids[0].len() as u16;
    assert_eq!(register(0, &ids, 0x0c).sense, Some(Sense::invalid_parameter(at)), "invented");
    assert_eq!(cluster.keys().1, []);
    // Now it is here, and so is another that is named below.
    let _connected = [9, 4].map(|who| cluster.target.nexus(&port(who)));
    assert_good(&register(0, &ids, 0x0c));
    assert_eq!(cluster.keys(), (1, vec![7; 3]));
    let status = cluster.input(3);
    assert_eq!(status[8..16], 7u64.to_be_bytes());
    assert_eq!((status[20], status[26..28].to_vec()), (0x02, vec![0, 1]), "ALL_TG_PT, port");
    let id = transport_id(&port(0));
    assert_eq!(status[28..32], (id.len() as u32).to_be_bytes());
    assert_eq!(status[32..32 + id.len()], id);
    assert_eq!(register(0, &ids, 8).status, Status::RESERVATION_CONFLICT, "wrong key");
    assert_eq!(register(2, &ids, 8).sense, Some(Sense::invalid_parameter(28)), "taken");
    let mut foreign = transport_id(&port(3));
    foreign[0] = 0x06; // SAS
    let at = 28 + transport_id(&port(4)).len() as u16;
    let list = [transport_id(&port(4)), foreign];
    assert_eq!(register(2, &list, 8).sense, Some(Sense::invalid_parameter(at)));
    assert_eq!(cluster.keys().1.len(), 3, "all or nothing");
    // A device name means all its ports that are known.
    let mut device = transport_id("iqn.2026-11.org.example:host2");
    device[0] = 0x05;
    assert_good(&cluster.out(0, 3, 0, 7, 0));
    cluster.settle();
    assert_good(&register(0, &[device], 8));
    assert_eq!(cluster.keys().1.len(), 2);
}

/// An initiator that a rule names may be registered before it comes; others have to have come.
#[test]
fn who_is_expected_may_be_registered() {
    struct Rules;
    impl Host for Rules {
        fn abort_tasks(&self, _: u64, _: Vec<NexusId>) -> BoxFuture {
            Box::pin(std::future::ready(()))
        }
        fn pause(&self, _: std::time::Duration) -> BoxFuture {
            Box::pin(std::future::ready(()))
        }
        fn spawn(&self, _: BoxFuture) {}
        fn expects(&self, initiator_name: &str) -> bool {
            initiator_name == "iqn.2026-11.org.example:host7"
        }
    }
    let cluster = Cluster::new(1);
    cluster.target.set_host(Arc::new(Rules));
    let register = |who: usize| {
        let (mut list, id) = (basic_list(0, 7, 8), transport_id(&port(who)));
        list.extend((id.len() as u32).to_be_bytes());
        list.extend(id);
        run_on(&cluster.nexuses[0], 0, &prout(0, 0, list.len()), list, 0)
    };
    assert_eq!(register(8).sense, Some(Sense::invalid_parameter(28)));
    assert_good(&register(7));
    assert_eq!(cluster.keys().1.len(), 2);
    assert_good(&cluster.out(0, 1, 1, 7, 0));
    let to_nobody = cluster.move_list(7, 9, 6, false);
    let moved = run_on(&cluster.nexuses[0], 0, &prout(7, 0, to_nobody.len()), to_nobody, 0);
    assert_eq!(moved.sense, Some(Sense::invalid_parameter(24)), "REGISTER AND MOVE to nobody");
}

#[test]
fn wrong_parameter_lists() {
    let cluster = Cluster::new(1);
    let send = |action, kind, list: Vec<u8>| {
        run_on(&cluster.nexuses[0], 0, &prout(action, kind, list.len()), list, 0)
    };
    assert_sense(&send(0, 0, vec![0; 23]), 5, 0x1a, 0);
    assert_sense(&send(0, 0, vec![0; 25]), 5, 0x1a, 0);
    assert_sense(&send(0, 0, basic_list(0, 1, 8)), 5, 0x1a, 0);
    assert_eq!(send(6, 0, basic_list(0, 1, 8)).sense, Some(Sense::invalid_parameter(20)));
    assert_eq!(send(0, 0, basic_list(0, 1, 1)).sense, Some(Sense::invalid_parameter(20)), "APTPL");
    assert_invalid_cdb(&send(1, 0x10, basic_list(0, 1, 0)), 2, 7); // SCOPE
    assert_invalid_cdb(&send(1, 0x02, basic_list(0, 1, 0)), 2, 3); // TYPE
    assert_invalid_cdb(&send(8, 0, basic_list(0, 1, 0)), 1, 4);
    let short = run_on(&cluster.nexuses[0], 0, &prout(0, 0, 24), vec![0; 20], 0);
    assert_sense(&short, 5, 0x1a, 0);
    let mut list = cluster.move_list(1, 2, 1, false);
    list[19] = 2; // no such port of ours
    assert_eq!(send(7, 0, list).sense, Some(Sense::invalid_parameter(18)));
}

#[test]
fn capabilities() {
    let cluster = Cluster::new(1);
    assert_eq!(cluster.input(2), [0, 8, 0x1c, 0x90, 0xea, 0x01, 0, 0]);
    for action in 4..32 {
        assert_invalid_cdb(&run_on(&cluster.nexuses[0], 0, &prin(action), "", 64), 1, 4);
    }
}

/// A store that can be told to fail.
#[derive(Clone, Debug, Default)]
struct TestStore(Arc<Mutex<(Option<Vec<u8>>, bool)>>);

impl StateStore for TestStore {
    fn load(&self) -> std::io::Result<Option<Vec<u8>>> {
        Ok(self.0.lock().unwrap().0.clone())
    }

    fn save(&self, state: &[u8]) -> std::io::Result<()> {
        let mut guard = self.0.lock().unwrap();
        if guard.1 {
            return Err(std::io::Error::other("disk full"));
        }
        guard.0 = Some(state.to_vec());
        Ok(())
    }
}

async fn out_saved(cluster: &Cluster, who: usize, action: u8, list: Vec<u8>) -> Response {
    let command =
        Command::new(0, Cdb::new(&prout(action, 5, list.len()))).with_data_out(list.into());
    cluster.nexuses[who].execute(command).await
}

#[tokio::test]
async fn a_restart_keeps_what_was_to_be_kept() {
    let store = TestStore::default();
    let start = || Cluster::with_options(2, LunOptions::default().with_state(store.clone()));
    let cluster = start();
    assert_eq!(cluster.input(2)[2..4], [0x1d, 0x90], "PTPL_C");
    assert_good(&out_saved(&cluster, 0, 0, basic_list(0, 1, 1)).await);
    assert_good(&out_saved(&cluster, 0, 1, basic_list(1, 0, 0)).await);
    assert_eq!(cluster.input(2)[3], 0x91, "PTPL_A");
    let cluster = start();
    assert_eq!((cluster.keys(), cluster.reservation()), ((0, vec![1]), Some((1, 5))));
    assert_eq!(cluster.access(1), (true, false));
    // What cannot be saved does not happen.
    store.0.lock().unwrap().1 = true;
    assert_sense(&out_saved(&cluster, 0, 2, basic_list(1, 0, 0)).await, 4, 0x44, 0);
    assert_eq!(cluster.reservation(), Some((1, 5)));
    store.0.lock().unwrap().1 = false;
    // APTPL 0: nothing is kept from here on.
    assert_good(&out_saved(&cluster, 0, 0, basic_list(1, 3, 0)).await);
    let cluster = start();
    assert_eq!((cluster.keys(), cluster.reservation()), ((0, vec![]), None));
}

#[test]
fn damaged_state_stops_the_unit() {
    let store = TestStore::default();
    store.save(b"enkaku reservations 1\n").unwrap();
    let target = Target::new(TargetConfig::new(NAME));
    let device = Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
    let options = LunOptions::default().with_state(store);
    let error = target.add_lun(0, device, options).unwrap_err().to_string();
    assert!(error.contains("persistent reservations: damaged (no checksum)"), "{error}");
}

#[test]
fn preempt_and_abort_names_the_victims() {
    #[derive(Default)]
    struct Aborts(Mutex<Vec<(u64, Vec<NexusId>)>>);
    impl Host for Aborts {
        fn abort_tasks(&self, lun: u64, nexuses: Vec<NexusId>) -> BoxFuture {
            self.0.lock().unwrap().push((lun, nexuses));
            Box::pin(std::future::ready(()))
        }
        fn pause(&self, _: std::time::Duration) -> BoxFuture {
            Box::pin(std::future::ready(()))
        }
        fn spawn(&self, _: BoxFuture) {}
    }
    let cluster = Cluster::new(3);
    let host = Arc::new(Aborts::default());
    cluster.target.set_host(host.clone());
    for who in 0..3 {
        assert_good(&cluster.out(who, 6, 0, 0, if who == 0 { 1 } else { 2 }));
    }
    assert_good(&cluster.out(0, 5, 1, 1, 2));
    let victims = [1, 2].map(|who: usize| cluster.nexuses[who].id()).to_vec();
    assert_eq!(*host.0.lock().unwrap(), [(0, victims)]);
}

const RESERVE_6: [u8; 6] = [0x16, 0, 0, 0, 0, 0];
const RELEASE_6: [u8; 6] = [0x17, 0, 0, 0, 0, 0];

#[test]
fn reserve_lasts_as_long_as_its_nexus() {
    let mut cluster = Cluster::new(2);
    let run =
        |cluster: &Cluster, who: usize, cdb: &[u8]| run_on(&cluster.nexuses[who], 0, cdb, "", 512);
    for end in 0..3 {
        assert_good(&run(&cluster, 0, &RESERVE_6));
        assert_good(&run(&cluster, 0, &[0x56, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
        assert_conflict(&run(&cluster, 1, &RESERVE_6));
        assert_good(&run(&cluster, 1, &RELEASE_6)); // without an effect
        assert_conflict(&run(&cluster, 1, &[0; 6]));
        assert_conflict(&run(&cluster, 1, &[0x1a, 0, 0x3f, 0, 255, 0]));
        assert_good(&run(&cluster, 1, &[0x12, 0, 0, 0, 96, 0]));
        assert_eq!((cluster.access(0), cluster.access(1)), ((true, true), (false, false)));
        match end {
            0 => assert_good(&run(&cluster, 0, &RELEASE_6)),
            1 => cluster.nexuses[1].lun_reset(0).unwrap(),
            _ => {
                let nexus = cluster.target.nexus(&port(0));
                cluster.nexuses[0] = nexus;
            }
        }
        cluster.settle();
        assert_eq!(cluster.access(1), (true, true), "end {end}");
    }
}

#[test]
fn reserve_and_persistent_reservations_exclude_each_other() {
    let cluster = Cluster::new(3);
    let run = |who: usize, cdb: &[u8]| run_on(&cluster.nexuses[who], 0, cdb, "", 512);
    assert_good(&run(0, &RESERVE_6));
    for who in 0..2 {
        assert_conflict(&cluster.out(who, 6, 0, 0, 1));
        assert_conflict(&run(who, &prin(0)));
    }
    assert_good(&run(0, &RELEASE_6));
    // CRH: registered nexuses with access have it confirmed; nothing is reserved.
    for who in 0..2 {
        assert_good(&cluster.out(who, 6, 0, 0, who as u64 + 1));
        assert_conflict(&run(who, &RESERVE_6));
    }
    assert_good(&cluster.out(0, 1, 5, 1, 0));
    for who in 0..2 {
        assert_good(&run(who, &RESERVE_6));
        assert_good(&run(who, &RELEASE_6));
    }
    assert_conflict(&run(2, &RESERVE_6));
    assert_eq!(cluster.reservation(), Some((1, 5)));
    assert_good(&cluster.out(0, 2, 5, 1, 0));
    cluster.settle();
    assert_good(&cluster.out(0, 1, 1, 1, 0));
    assert_good(&run(0, &RESERVE_6));
    assert_conflict(&run(1, &RESERVE_6));
}
