//! One unit of two targets that keep its reservations together.

use std::path::PathBuf;

use super::reservations::prout;
use super::*;

const HOST_ONE: &str = "iqn.2026-11.org.example:one,i,0x000000000001";
const HOST_TWO: &str = "iqn.2026-11.org.example:two,i,0x000000000001";
const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const PREEMPT: u8 = 4;
const WRITE_EXCLUSIVE: u8 = 1;
const ALL_TG_PT: u8 = 0x04;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("scsi-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone_already = std::fs::remove_dir_all(&self.0);
    }
}

/// Targets of the groups 1 and 2 before one device.
fn pair(folder: &Folder) -> [Target; 2] {
    let device: Device = Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
    [1, 2].map(|group| {
        let target = Target::new(TargetConfig::new(NAME).with_group(group));
        let store = SharedFileStore::new(folder.0.join("lun0"));
        let options = LunOptions::default().with_shared_beyond(true).with_shared_state(store);
        target.add_lun(0, device.clone(), options).unwrap();
        target
    })
}

/// As somebody would ask whose target has just looked.
async fn out(target: &Target, nexus: &Nexus, action: u8, keys: (u64, u64), flags: u8) -> Response {
    target.refresh().unwrap();
    let kind = if action == REGISTER { 0 } else { WRITE_EXCLUSIVE };
    let mut list = keys.0.to_be_bytes().to_vec();
    list.extend(keys.1.to_be_bytes());
    list.extend([0, 0, 0, 0, flags, 0, 0, 0]);
    let cdb = Cdb::new(&prout(action, kind, 24));
    nexus.execute(Command::new(0, cdb).with_data_out(list.into())).await
}

async fn write(nexus: &Nexus) -> Status {
    let cdb = Cdb::new(&cdb(0x8a, 0, 0, 1));
    nexus.execute(Command::new(0, cdb).with_data_out(vec![0; 512].into())).await.status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_was_told_holds_at_the_other_or_it_does_not_answer() {
    let folder = Folder::new("pair");
    let [one, two] = pair(&folder);
    let holder = ready(one.nexus(HOST_ONE));
    let second_path = ready(two.nexus(HOST_ONE));
    let other = ready(two.nexus(HOST_TWO));
    assert_eq!(write(&other).await, Status::GOOD);
    assert_good(&out(&one, &holder, REGISTER, (0, 0x11), 0).await);
    assert_good(&out(&one, &holder, RESERVE, (0x11, 0), 0).await);
    // The other has not looked since, so it does not know and does not answer.
    assert_eq!(write(&other).await, Status::BUSY);
    two.refresh().unwrap();
    assert_eq!(write(&other).await, Status::RESERVATION_CONFLICT);
    one.refresh().unwrap();
    assert_eq!(write(&holder).await, Status::GOOD);
    // Another path of the holder is another nexus, until that is registered as well.
    two.refresh().unwrap();
    assert_eq!(write(&second_path).await, Status::RESERVATION_CONFLICT);
    assert_good(&out(&two, &other, REGISTER, (0, 0x22), 0).await);
    assert_good(&out(&two, &other, PREEMPT, (0x22, 0x11), 0).await);
    // Who has lost its registration at the other target is told by its own.
    let told = out(&one, &holder, RESERVE, (0x11, 0), 0).await;
    assert_sense(&told, 0x6, 0x2a, 0x05);
    assert_eq!(write(&holder).await, Status::RESERVATION_CONFLICT);
    // A target that comes up finds what there is.
    let [again, _] = pair(&folder);
    let again = ready(again.nexus(HOST_ONE));
    assert_eq!(write(&again).await, Status::RESERVATION_CONFLICT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_target_ports_are_those_of_the_pair() {
    let folder = Folder::new("pair-all");
    let [one, two] = pair(&folder);
    let other = PortGroup { group: 2, relative_port: 2, state: AccessState::Standby };
    one.set_other_groups(&[other]);
    let holder = ready(one.nexus(HOST_ONE));
    assert_good(&out(&one, &holder, REGISTER, (0, 0x11), ALL_TG_PT).await);
    one.refresh().unwrap();
    let status = Cdb::new(&[0x5e, 0x03, 0, 0, 0, 0, 0, 2, 0, 0]);
    let status = holder.execute(Command::new(0, status).with_data_in_max(512)).await.data_in;
    let ports: Vec<u8> = status[8..].chunks(24 + 52).map(|one| one[19]).collect();
    assert_eq!(ports, [1, 2], "relative target ports of the registrations: {status:x?}");
    let second_path = ready(two.nexus(HOST_ONE));
    assert_good(&out(&two, &second_path, RESERVE, (0x11, 0), 0).await);
    // All groups are told, with what they are.
    let groups = Cdb::new(&[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0]);
    let groups = holder.execute(Command::new(0, groups).with_data_in_max(64)).await;
    assert_eq!(groups.data_in[..4], [0, 0, 0, 24]);
    let state = |at: usize| (groups.data_in[at] & 0xf, groups.data_in[at + 3]);
    assert_eq!((state(4), state(16)), ((0, 1), (2, 2)));
}
