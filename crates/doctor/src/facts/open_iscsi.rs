//! Sessions of the kernel's initiator: the attributes of drivers/scsi/scsi_transport_iscsi.c in
//! `/sys/class/iscsi_session`, `iscsi_connection` and below. Names and passwords of CHAP, which are
//! there for root, are not read.

use std::net::{IpAddr, SocketAddr};

use super::disk::disk;
use super::files::{Files, number, switch, word};
use super::{Initiator, Keys, Session};

const SESSIONS: &str = "sys/class/iscsi_session";
const CONNECTIONS: &str = "sys/class/iscsi_connection";
/// Sessions that are looked at.
const SESSIONS_MAX: usize = 256;
/// Disks of a session that are looked at.
const DISKS_MAX: usize = 64;

/// The sessions, in the order of their numbers.
pub fn sessions(files: &dyn Files) -> Vec<Session> {
    let mut names = files.names(SESSIONS);
    names.retain(|name| id(name).is_some());
    names.sort_by_key(|name| id(name));
    names.iter().take(SESSIONS_MAX).map(|name| session(files, name)).collect()
}

/// The number in `session12`.
fn id(name: &str) -> Option<u32> {
    name.strip_prefix("session")?.parse().ok()
}

fn session(files: &dyn Files, name: &str) -> Session {
    let path = |attribute: &str| format!("{SESSIONS}/{name}/{attribute}");
    let size = |attribute: &str| number(files, &path(attribute));
    let connections = files.names(CONNECTIONS);
    let prefix = format!("connection{}:", id(name).unwrap_or_default());
    // More than one is not what open-iscsi does; if so, they are alike.
    let connection = connections.iter().find(|one| one.starts_with(&prefix));
    let of = |attribute: &str| Some(format!("{CONNECTIONS}/{}/{attribute}", connection?));
    let keys = Keys {
        first_burst_bytes: size("first_burst_len"),
        max_burst_bytes: size("max_burst_len"),
        max_outstanding_r2t: size("max_outstanding_r2t"),
        initial_r2t: switch(files, &path("initial_r2t")),
        immediate_data: switch(files, &path("immediate_data")),
        header_digest: of("header_digest").and_then(|path| switch(files, &path)),
        data_digest: of("data_digest").and_then(|path| switch(files, &path)),
        receive_segment_bytes: of("max_recv_dlength").and_then(|path| number(files, &path)),
        send_segment_bytes: of("max_xmit_dlength").and_then(|path| number(files, &path)),
    };
    let portal = |address: &str, port: &str| {
        let address: IpAddr = word(files, &of(address)?)?.parse().ok()?;
        let port = number(files, &of(port)?)?.try_into().ok()?;
        Some(SocketAddr::new(address.to_canonical(), port))
    };
    let (record, portal) =
        (portal("persistent_address", "persistent_port"), portal("address", "port"));
    let (host, disks) = units(files, &path("device"));
    Session {
        name: name.to_owned(),
        initiator: Initiator::OpenIscsi,
        target: word(files, &path("targetname")),
        portal: portal.or(record),
        record: record.or(portal),
        local_port: of("local_port")
            .and_then(|path| number(files, &path))
            .and_then(|port| port.try_into().ok())
            .filter(|port| *port > 0),
        state: word(files, &path("state")),
        keys,
        commands_max: host
            .and_then(|host| number(files, &format!("sys/class/scsi_host/{host}/can_queue"))),
        disks: disks.iter().map(|name| disk(files, name)).collect(),
        ..Session::default()
    }
}

/// The SCSI host and the disks: `targetH:C:I/H:C:I:L/block/NAME` below the session's device.
fn units(files: &dyn Files, device: &str) -> (Option<String>, Vec<String>) {
    let (mut host, mut disks) = (None, Vec::new());
    for target in files.names(device) {
        let Some(address) = target.strip_prefix("target") else { continue };
        let Some((number, _)) = address.split_once(':') else { continue };
        host.get_or_insert_with(|| format!("host{number}"));
        for unit in files.names(&format!("{device}/{target}")) {
            if unit.starts_with(address) && disks.len() < DISKS_MAX {
                disks.extend(files.names(&format!("{device}/{target}/{unit}/block")));
            }
        }
    }
    disks.sort();
    disks.truncate(DISKS_MAX);
    (host, disks)
}

#[cfg(test)]
mod tests {
    use super::super::files::tests::Tree;
    use super::*;

    const SESSION: &str = "
        sys/class/iscsi_session/session10/targetname: iqn.2026-11.org.example:later
        sys/class/iscsi_session/session2/targetname: iqn.2003-01.org.linux-iscsi.filer.x8664:sn.1
        sys/class/iscsi_session/session2/state: LOGGED_IN
        sys/class/iscsi_session/session2/first_burst_len: 65536
        sys/class/iscsi_session/session2/max_burst_len: 262144
        sys/class/iscsi_session/session2/max_outstanding_r2t: 1
        sys/class/iscsi_session/session2/initial_r2t: 0
        sys/class/iscsi_session/session2/immediate_data: 1
        sys/class/iscsi_session/session2/username: (null)
        sys/class/iscsi_session/session2/device/target3:0:0/3:0:0:1/block/sdc/size: 1
        sys/class/iscsi_session/session2/device/target3:0:0/3:0:0:0/block/sdb/size: 1
        sys/class/iscsi_session/session2/device/target3:0:0/power/control: auto
        sys/class/iscsi_session/session2/device/connection2:0/uevent: x
        sys/class/iscsi_connection/connection2:0/address: 192.0.2.10
        sys/class/iscsi_connection/connection2:0/port: 3260
        sys/class/iscsi_connection/connection2:0/local_port: 49152
        sys/class/iscsi_connection/connection2:0/persistent_address: 192.0.2.9
        sys/class/iscsi_connection/connection2:0/persistent_port: 3260
        sys/class/iscsi_connection/connection2:0/header_digest: 0
        sys/class/iscsi_connection/connection2:0/data_digest: 1
        sys/class/iscsi_connection/connection2:0/max_recv_dlength: 262144
        sys/class/iscsi_connection/connection20:0/port: 1
        sys/class/scsi_host/host3/can_queue: 128
        sys/block/sdb/device/queue_depth: 32
        sys/block/sdb/queue/read_ahead_kb: 128
        sys/block/sdb/queue/scheduler: [mq-deadline] none";

    #[test]
    fn a_session_is_read_with_its_disks() {
        let found = sessions(&Tree::of(SESSION));
        assert_eq!(
            found.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(),
            ["session2", "session10"]
        );
        let one = &found[0];
        assert_eq!(one.target.as_deref(), Some("iqn.2003-01.org.linux-iscsi.filer.x8664:sn.1"));
        assert_eq!(one.portal, Some("192.0.2.10:3260".parse().unwrap()));
        assert_eq!(one.record, Some("192.0.2.9:3260".parse().unwrap()), "it was redirected");
        assert_eq!((one.keys.first_burst_bytes, one.keys.initial_r2t), (Some(65_536), Some(false)));
        assert_eq!((one.keys.data_digest, one.keys.send_segment_bytes), (Some(true), None));
        assert_eq!((one.commands_max, one.local_port), (Some(128), Some(49_152)));
        let disks: Vec<_> =
            one.disks.iter().map(|disk| (disk.name.as_str(), disk.queue_depth)).collect();
        assert_eq!(disks, [("sdb", Some(32)), ("sdc", None)]);
        assert_eq!(one.disks[0].scheduler.as_deref(), Some("mq-deadline"));
        // One that is just being set up.
        assert_eq!((found[1].portal, found[1].disks.len()), (None, 0));
    }

    #[test]
    fn no_session_and_nonsense_are_none() {
        assert!(sessions(&Tree::default()).is_empty());
        assert!(sessions(&Tree::of("sys/class/iscsi_session/session/state: x")).is_empty());
        let odd = "sys/class/iscsi_session/session1/initial_r2t: 7
                   sys/class/iscsi_connection/connection1:0/address: filer.example
                   sys/class/iscsi_connection/connection1:0/port: 99999";
        let odd = sessions(&Tree::of(odd)).remove(0);
        assert_eq!((odd.keys.initial_r2t, odd.portal), (None, None));
    }
}
