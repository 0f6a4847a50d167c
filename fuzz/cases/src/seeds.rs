//! Inputs to begin with, made by the encoders of the code under test, so that a fuzzer need not
//! find out by itself what a login looks like.

use bytes::Bytes;
use iscsi_proto::connection::Transmit;
use iscsi_proto::frame::Framing;
use iscsi_proto::ids::{Cid, Itt, Lun, Tsih, Ttt};
use iscsi_proto::initiator::{Command, Config, Established, Session};
use iscsi_proto::login::{initiator, target};
use iscsi_proto::names::TargetAddress;
use iscsi_proto::pdu::{
    DataOut, Header, LogoutReason, LogoutRequest, NopOut, ScsiCommand, TaskAttribute, TextRequest,
};
use iscsi_proto::serial::{CmdSn, DataSn, StatSn};
use iscsi_proto::time::Instant;

mod capture;
mod recovery;

/// Name and input of every seed of a case.
pub fn seeds(case: &str) -> Vec<(&'static str, Vec<u8>)> {
    match case {
        "framer" => vec![("login", [&[0, 3][..], &login_streams(0).0].concat())],
        "text_keys" => text_keys(),
        "login_target" => {
            [("none", 0u8, 0u8), ("chap", 2, 1), ("mutual", 6, 1), ("discovery", 1, 0)]
                .map(|(name, flags, chap)| (name, [&[chap][..], &login_streams(flags).0].concat()))
                .to_vec()
        }
        "login_initiator" => [("none", 0u8), ("chap", 2), ("mutual", 6), ("discovery", 1)]
            .map(|(name, flags)| (name, [&[flags][..], &login_streams(flags).1].concat()))
            .to_vec(),
        "target_session" => [target_session(), recovery::target_session()].concat(),
        "initiator_session" => [initiator_session(), recovery::initiator_session()].concat(),
        "cdb" => cdbs(),
        "nbd_handshake" => nbd(),
        "nbd_client" => crate::nbd_client::seeds(),
        "scsi_replies" => scsi_replies(),
        "names" => names(),
        "target_toml" => target_toml(),
        "isns" => crate::isns::seeds(),
        "files" => crate::files::seeds(),
        "media_catalogue" | "media_entry" | "media_ranges" | "media_subtitles" => {
            crate::media::seeds(case)
        }
        "uplink" => crate::uplink::seeds(),
        "capture_file" => capture::files(),
        "capture_stream" => capture::stream(),
        "pcap" => capture::pcap(),
        "pcapng" => capture::pcapng(),
        "stream" => capture::segments(),
        "mirror_leg" | "mirror_redo" | "mirror_metadata" | "copy_state" => crate::kept::seeds(),
        _ => Vec::new(),
    }
}

/// A command to unit 0 that reads or writes so many bytes.
fn scsi_command(itt: u32, cdb: [u8; 16], read: u32, write: u32) -> ScsiCommand {
    ScsiCommand {
        immediate: false,
        is_final: true,
        read: read > 0,
        write: write > 0,
        attribute: TaskAttribute::SIMPLE,
        priority: 0,
        lun: Lun(0),
        itt: Itt(itt),
        expected_data_transfer_length: read + write,
        cmd_sn: CmdSn(0),
        exp_stat_sn: StatSn(1),
        cdb,
        extended_cdb: Bytes::new(),
        bidi_read_length: None,
    }
}

/// What our initiator says and what our target answers, as streams.
fn login_streams(flags: u8) -> (Vec<u8>, Vec<u8>) {
    let (mut said, mut answered) = (Vec::new(), Vec::new());
    let mut ours = crate::login::initiator_login(flags);
    let mut theirs = crate::login::target_login(flags & 6 != 0);
    let (mut request, mut text) = ours.first();
    loop {
        let header = request.encode(text.len() as u32);
        said.extend(Framing::default().pdu_bytes(&header, &text));
        let (response, answer) = match theirs.handle(&request, &text) {
            Ok(target::Step::Send(response, answer)) => (response, answer),
            Ok(target::Step::Ready(_)) => theirs.accept(Tsih(1), CmdSn(1), CmdSn(32)),
            Err(failure) => theirs.failure_response(&failure),
        };
        let header = response.encode(answer.len() as u32);
        answered.extend(Framing::default().pdu_bytes(&header, &answer));
        match ours.handle(&response, &answer) {
            Ok(initiator::Step::Send(next, next_text)) => (request, text) = (next, next_text),
            _ => return (said, answered),
        }
    }
}

fn text_keys() -> Vec<(&'static str, Vec<u8>)> {
    let all = b"HeaderDigest=CRC32C,None\0DataDigest=CRC32C,None\0MaxConnections=8\0\
        InitialR2T=No\0ImmediateData=Yes\0MaxRecvDataSegmentLength=65536\0MaxBurstLength=262144\0\
        FirstBurstLength=65536\0DefaultTime2Wait=2\0DefaultTime2Retain=0\0MaxOutstandingR2T=4\0\
        DataPDUInOrder=Yes\0DataSequenceInOrder=Yes\0ErrorRecoveryLevel=0\0IFMarker=No\0\
        TaskReporting=RFC3720\0iSCSIProtocolLevel=1\0X-com.example.key=1\0";
    let names =
        b"InitiatorName=iqn.2026-11.org.example:host\0TargetName=iqn.2026-11.org.example:d\0\
        SessionType=Normal\0AuthMethod=CHAP,None\0";
    let chap = b"CHAP_A=7,5\0CHAP_N=host\0CHAP_R=0x0123456789abcdef\0CHAP_I=7\0CHAP_C=0bAAAA\0";
    vec![
        ("operational_target", [&[0x10, 255][..], all].concat()),
        ("operational_initiator", [&[0x11, 255][..], all].concat()),
        ("security", [&[0, 255][..], names].concat()),
        ("chap", [&[0, 255][..], chap].concat()),
    ]
}

/// A configuration with about everything in it.
const LARGE_TOML: &str = r#"
        [server]
        state_directory = "/var/lib/enkaku"
        admin_socket = "/run/enkaku/admin"
        log = "info,iscsi=debug"
        shutdown_timeout = "10s"
        [metrics]
        listen = "127.0.0.1:9100"
        [limits]
        connections = 4096
        sessions = 1024
        sessions_per_initiator = 8
        logins = 256
        logins_per_address = 16
        login_timeout = "15s"
        command_window = 512
        memory = "1G"
        [chap.host]
        user = "host"
        password_env = "PATH"
        algorithms = ["sha256", "md5"]
        [parameters]
        max_connections = 8
        initial_r2t = false
        immediate_data = true
        max_burst_length = "1M"
        first_burst_length = "256K"
        header_digest = "prefer"
        data_digest = "avoid"
        [[portal]]
        name = "a"
        listen = "[::1]:3260"
        external = "198.51.100.1:3260"
        [[target]]
        name = "iqn.2026-11.org.example:disk"
        alias = "a disk"
        portals = ["a"]
        [[target.initiator]]
        name = "iqn.2026-11.org.example:host"
        chap = "host"
        read_only = [1]
        [[target.lun]]
        number = 1
        path = "/srv/disk.img"
        create = "10G"
        block_size = 4096
        physical_block_size = 4096
        thin = false
        write_cache = false
        direct = true
        serial = "S1"
        naa = "3000000000000001"
        vendor = "ENKAKU"
        product = "DISK"
        space_warning = "1G"
    "#;

fn target_toml() -> Vec<(&'static str, Vec<u8>)> {
    let small = r#"
        [[portal]]
        listen = "127.0.0.1:3260"
        [[target]]
        name = "iqn.2026-11.org.example:disk"
        anyone = true
        [[target.lun]]
        number = 0
        path = "mem:1G"
    "#;
    // The documented one, with secrets that are no files.
    let documented = include_str!("../../../contrib/target.toml")
        .replace("password_file", "password_env")
        .replace("/etc/enkaku/operator.secret", "PATH")
        .replace("/etc/enkaku/enkaku.secret", "PWD");
    vec![("small", small.into()), ("large", LARGE_TOML.into()), ("documented", documented.into())]
}

fn record(what: u8, header: &Header, data: &[u8]) -> Vec<u8> {
    [&[what][..], &header.bhs, &header.ahs, data].concat()
}

/// What an initiator sends for these commands, as records of the target's case.
fn commands(flags: u8) -> Vec<u8> {
    let login = Established {
        tsih: Tsih(1),
        cid: Cid(1),
        session: iscsi_proto::keys::SessionParams {
            initial_r2t: flags & 1 != 0,
            immediate_data: flags & 2 == 0,
            max_burst_length: 512,
            first_burst_length: 512,
            ..Default::default()
        },
        connection: Default::default(),
        cmd_sn: CmdSn(u32::MAX - 1),
        exp_cmd_sn: CmdSn(u32::MAX - 1),
        max_cmd_sn: CmdSn(6),
        exp_stat_sn: StatSn(u32::MAX - 1),
    };
    let (mut session, id) = Session::new(Config::default(), &login, Instant::default());
    for (cdb0, out, data_in_len) in [(0x28, 0, 2048), (0x2a, 512, 0), (0x2a, 1024, 0), (0, 0, 0)] {
        let mut cdb = [0; 16];
        cdb[0] = cdb0;
        let data_out = Bytes::from(vec![0; out]);
        let attribute = TaskAttribute::SIMPLE;
        let _ = session.submit(Command { lun: Lun(0), cdb, data_out, data_in_len, attribute }, ());
    }
    let mut records = vec![flags];
    while let Some(Transmit { header, payload }) = session.poll_transmit(id, Instant::default()) {
        // A data segment is placed by the target and is no part of the input.
        let _ = payload;
        records.extend(record(0x20, &header, &[]));
    }
    records
}

fn target_session() -> Vec<(&'static str, Vec<u8>)> {
    let (itt, cmd_sn, exp_stat_sn) = (Itt(9), CmdSn(u32::MAX - 1), StatSn(u32::MAX - 1));
    let nop = NopOut { immediate: true, lun: Lun(0), itt, ttt: Ttt::NONE, cmd_sn, exp_stat_sn };
    let data = DataOut {
        is_final: true,
        lun: Lun(0),
        itt: Itt(2),
        ttt: Ttt(1),
        exp_stat_sn,
        data_sn: DataSn(0),
        buffer_offset: 512,
    };
    let logout = LogoutRequest {
        immediate: false,
        reason: LogoutReason::CLOSE_SESSION,
        itt,
        cid: Cid(1),
        cmd_sn,
        exp_stat_sn,
    };
    let text = TextRequest {
        immediate: false,
        is_final: true,
        continues: false,
        lun: Lun(0),
        itt,
        ttt: Ttt::NONE,
        cmd_sn,
        exp_stat_sn,
    };
    let (complete, fetch) = ([20, 0].repeat(3), [22, 255]);
    let asked = b"SendTargets=All\0";
    let text = record(0x20, &text.encode(asked.len() as u32), asked);
    vec![
        ("immediate_data", [commands(0), complete.clone(), fetch.to_vec()].concat()),
        (
            "solicited",
            [commands(3), fetch.to_vec(), record(0, &data.encode(512), &[]), complete].concat(),
        ),
        ("ping", [vec![0], record(0, &nop.encode(4), b"ping"), fetch.to_vec()].concat()),
        ("text", [vec![8], text, vec![28, 2, 0], fetch.to_vec()].concat()),
        ("logout", [commands(0), record(0x20, &logout.encode(0), &[])].concat()),
    ]
}

/// A header by hand: opcode, flags, and bytes by offset.
fn bhs(opcode: u8, flags: u8, fields: &[(usize, &[u8])]) -> Header {
    let mut header = Header { bhs: [0; 48], ahs: Bytes::new() };
    (header.bhs[0], header.bhs[1]) = (opcode, flags);
    for (at, bytes) in fields {
        header.bhs[*at..*at + bytes.len()].copy_from_slice(bytes);
    }
    header
}

fn initiator_session() -> Vec<(&'static str, Vec<u8>)> {
    let none: (usize, &[u8]) = (20, &[255; 4]);
    let window: (usize, &[u8]) = (32, &[0, 0, 0, 16]);
    let response = bhs(0x21, 0x80, &[none, window]);
    let data_in = bhs(0x25, 0x81, &[(5, &[0, 2, 0]), none, window]);
    let r2t = bhs(0x31, 0x80, &[(20, &[0, 0, 0, 1]), window, (44, &[0, 0, 2, 0])]);
    let ping = bhs(0x20, 0x80, &[(16, &[255; 4]), (20, &[0, 0, 0, 1]), window, (7, &[4])]);
    let text = bhs(0x24, 0x80, &[(7, &[8]), (19, &[1]), none, window]);
    let reject = bhs(0x3f, 0x80, &[(2, &[4]), (16, &[255; 4]), (7, &[48]), window]);
    let sense = bhs(0x21, 0x80, &[(3, &[2]), (7, &[20]), none, window]);
    let (read, write, send) = ([16, 2, 0], [18, 4, 0], [20]);
    let with = |start: &[&[u8]], header: &Header, data: &[u8]| {
        [&start.concat()[..], &record(0x60, header, data)].concat()
    };
    vec![
        ("response", with(&[&[0], &read, &send], &response, &[])),
        ("sense", with(&[&[0], &read, &send], &sense, &[0, 18, 0x70, 0, 6, 0, 0, 0, 0, 10])),
        ("data_in", with(&[&[0], &read, &send], &data_in, &[])),
        ("r2t", with(&[&[3], &write, &send], &r2t, &[])),
        ("ping", with(&[&[0]], &ping, b"ping")),
        ("text", with(&[&[0], &[28], &send], &text, b"A=1\0B=2\0")),
        ("reject", with(&[&[0], &write, &send], &reject, &[1; 48])),
    ]
}

fn cdbs() -> Vec<(&'static str, Vec<u8>)> {
    let command = |kind: u8, cdb: &[u8], len: u16, data: &[u8]| {
        let mut padded = [0; 16];
        padded[..cdb.len()].copy_from_slice(cdb);
        [&[0, kind][..], &padded, &len.to_be_bytes(), data].concat()
    };
    let ready = command(0, &[0], 0, &[]); // takes the unit attention
    let rest = [
        ("inquiry", command(0, &[0x12, 1, 0x83, 0, 255], 255, &[])),
        ("read10", command(0, &[0x28, 0, 0, 0, 0, 8, 0, 0, 2], 1024, &[])),
        ("write16", command(1, &[0x8a, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1], 512, &[7; 64])),
        ("unmap", command(1, &[0x42, 0, 0, 0, 0, 0, 0, 0, 24], 24, &[0, 22, 0, 16, 0, 0, 0, 0])),
        ("write_same", command(1, &[0x93, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8], 512, &[0; 64])),
        ("compare", command(1, &[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], 1024, &[0; 64])),
        ("verify", command(1, &[0x2f, 2, 0, 0, 0, 0, 0, 0, 1], 512, &[0; 64])),
        ("capacity", command(0, &[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32], 32, &[])),
        ("lba_status", command(0, &[0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0], 256, &[])),
        ("mode_sense", command(0, &[0x1a, 0, 0x3f, 0, 192], 192, &[])),
        ("report_luns", command(0, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0], 256, &[])),
        ("opcodes", command(0, &[0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 16, 0], 4096, &[])),
    ];
    rest.map(|(name, input)| (name, [ready.clone(), input].concat())).to_vec()
}

fn nbd() -> Vec<(&'static str, Vec<u8>)> {
    let option = |code: u32, data: &[u8]| {
        let len = (data.len() as u32).to_be_bytes();
        [b"IHAVEOPT", &code.to_be_bytes()[..], &len, data].concat()
    };
    let go = [&4u32.to_be_bytes()[..], b"disk", &[0, 1, 0, 3]].concat();
    let context = [&4u32.to_be_bytes()[..], b"disk", &1u32.to_be_bytes(), &15u32.to_be_bytes()];
    let context = [&context.concat()[..], b"base:allocation"].concat();
    let start = [&[16][..], &3u32.to_be_bytes()].concat();
    vec![
        ("export_name", [start.clone(), option(1, b"disk")].concat()),
        ("list", [start.clone(), option(3, &[]), option(2, &[])].concat()),
        ("go", [start, option(8, &[]), option(10, &context), option(7, &go)].concat()),
    ]
}

fn scsi_replies() -> Vec<(&'static str, Vec<u8>)> {
    let fixed = [0x70, 0, 0x05, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xc0, 0, 1];
    let descriptor = [0x72, 6, 0x29, 0, 0, 0, 0, 12, 0, 10, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let designators = [0, 0x83, 0, 12, 1, 3, 0, 8, 0x50, 1, 2, 3, 4, 5, 6, 7];
    let capacity = [&[0; 6][..], &[7, 255, 0, 0, 2, 0, 0, 3, 0xc0, 0], &[0; 16]].concat();
    let mut inquiry = [0x20; 36];
    (inquiry[0], inquiry[8]) = (0, b'E');
    let reply = |status: u8, page: u8, data: &[u8]| [&[status, page][..], data].concat();
    vec![
        ("fixed", reply(2, 0, &fixed)),
        ("descriptor", reply(2, 0, &descriptor)),
        ("page83", reply(0, 0x83, &designators)),
        ("pageb0", reply(0, 0xb0, &[&[0, 0xb0, 0, 60][..], &[1; 60]].concat())),
        ("pageb2", reply(0, 0xb2, &[0, 0xb2, 0, 4, 0, 0xe4, 2, 0])),
        ("capacity", reply(0, 0, &capacity)),
        ("inquiry", reply(0, 0, &inquiry)),
        ("mode", reply(0, 0, &[23, 0, 0x90, 0, 8, 18, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
        ("lba_status", reply(0, 0, &[&[0, 0, 0, 20, 0, 0, 0, 0][..], &[1; 16]].concat())),
    ]
}

fn names() -> Vec<(&'static str, Vec<u8>)> {
    let name = "iqn.2026-11.org.example:disk".to_owned();
    let portal = TargetAddress { host: "192.0.2.1".to_owned(), port: 3260, group: Some(1) };
    let record = iscsi_proto::keys::send_targets::TargetRecord { name, portals: vec![portal] };
    let text = |text: &str| text.as_bytes().to_vec();
    vec![
        ("send_targets", iscsi_proto::keys::send_targets::encode(&[record]).to_vec()),
        ("url", text("iscsi://user%25pass@[2001:db8::1]:3260/iqn.2026-11.org.example:disk/1")),
        ("plain_url", text("iscsi://disk.example/iqn.2026-11.org.example:disk/0")),
        ("address", text("[2001:db8::1]:3260,1")),
        ("eui", text("eui.02004567A425678D")),
        ("naa", text("naa.52004567BA64678D")),
        ("path", text("TargetName=iqn.2026-11.org.example:../../etc\0TargetAddress=$(id),1\0")),
    ]
}
