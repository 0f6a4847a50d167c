//! The client against a server that forgets, fails, hangs up and lies.

mod server;

use std::time::Duration;

use block::{BlockDevice, BlockError, Buf, Bytes, Extent, WriteFlags, ZeroFlags};

use self::server::{Lie, SIZE, Server};
use super::{Config, ConnectError, NbdDisk};
use crate::wire::{
    ChunkType, Command, CommandFlags, ErrorCode, TransmissionFlags as Flags, chunk_header,
    simple_reply,
};

fn config() -> Config {
    Config { replacement_timeout: Duration::from_secs(20), ..Config::default() }
}

async fn connected(server: &Server) -> NbdDisk {
    NbdDisk::connect(server.url(), config()).await.unwrap()
}

fn data(byte: u8, len: usize) -> Bytes {
    Bytes::from(vec![byte; len])
}

async fn write(disk: &NbdDisk, at: u64, byte: u8, len: usize) {
    disk.write(at, data(byte, len), WriteFlags::NONE).await.unwrap();
}

#[tokio::test]
async fn what_is_written_is_read_with_and_without_structured_replies() {
    for structured in [true, false] {
        let server = Server::start();
        server.world().structured = structured;
        let disk = connected(&server).await;
        let info = disk.info();
        assert_eq!((info.size, info.block_size, info.can_extents), (SIZE, 512, structured));
        assert_eq!(disk.connection_count(), 4);
        write(&disk, 4096, 7, 8192).await;
        disk.zero(4096, 512, ZeroFlags::new(false, true)).await.unwrap();
        let read = disk.read(4096, Buf::new(8192)).await.unwrap();
        assert!(read[..512].iter().all(|byte| *byte == 0));
        assert!(read[512..].iter().all(|byte| *byte == 7));
        let extents = disk.extents(0, 8192).await.unwrap();
        let hole = Extent { offset: 0, len: 4096, hole: true };
        assert_eq!(extents.first(), Some(&hole).filter(|_| structured).or(extents.first()));
        assert_eq!(extents.len(), if structured { 2 } else { 1 });
        disk.close().await.unwrap();
        assert!(matches!(disk.flush().await, Err(BlockError::Unreachable(_))));
        assert_eq!(server.world().stable[5000], 7);
    }
}

#[tokio::test]
async fn requests_are_cut_and_replies_may_come_in_any_order() {
    let server = Server::start();
    server.world().block_sizes = [512, 4096, 65536];
    server.world().flags = server::ALL.without(Flags::CAN_MULTI_CONN);
    let disk = connected(&server).await;
    assert_eq!(disk.connection_count(), 1);
    server.world().swaps = true;
    let content: Vec<u8> = (0..256 << 10).map(|n| (n / 512) as u8).collect();
    disk.write(0, content.clone().into(), WriteFlags::FUA).await.unwrap();
    let read = disk.read(0, Buf::new(256 << 10)).await.unwrap();
    assert_eq!(&read[..], content);
    let world = server.world();
    assert_eq!((world.count(Command::WRITE), world.count(Command::READ)), (4, 4));
    assert!(world.seen.iter().all(|header| header.length <= 65536));
    assert_eq!(world.stable[..256 << 10], content);
}

#[tokio::test]
async fn what_a_server_forgets_is_written_again_before_a_flush_vouches_for_it() {
    let server = Server::start();
    let disk = connected(&server).await;
    write(&disk, 0, 1, 4096).await;
    disk.flush().await.unwrap();
    write(&disk, 0, 2, 512).await;
    disk.zero(1024, 512, ZeroFlags::new(false, true)).await.unwrap();
    server.power_cut();
    disk.flush().await.unwrap();
    let stable = server.world().stable.clone();
    assert!(stable[..512].iter().all(|byte| *byte == 2));
    assert!(stable[512..1024].iter().all(|byte| *byte == 1));
    assert!(stable[1024..1536].iter().all(|byte| *byte == 0));
    let writes = server.world().count(Command::WRITE);
    server.power_cut();
    let read = disk.read(0, Buf::new(512)).await.unwrap();
    assert_eq!((read[0], server.world().count(Command::WRITE)), (2, writes), "nothing was kept");
}

#[tokio::test]
async fn what_is_under_way_when_the_server_goes_is_sent_again() {
    let server = Server::start();
    let disk = connected(&server).await;
    for command in [Command::WRITE, Command::READ, Command::FLUSH, Command::WRITE_ZEROES] {
        server.world().hangs_up_on = Some((command, 2));
        match command {
            Command::WRITE => write(&disk, 512, 9, 512).await,
            Command::READ => assert_eq!(disk.read(512, Buf::new(512)).await.unwrap()[0], 9),
            Command::FLUSH => disk.flush().await.unwrap(),
            _ => disk.zero(512, 512, ZeroFlags::new(true, true)).await.unwrap(),
        }
        assert_eq!(server.world().hangs_up_on, Some((command, 0)));
    }
    assert_eq!(server.world().stable[512], 0);
}

#[tokio::test]
async fn a_request_that_kills_the_server_does_not_kill_it_for_ever() {
    let server = Server::start();
    let disk = connected(&server).await;
    server.world().hangs_up_on = Some((Command::TRIM, u32::MAX));
    let error = disk.trim(0, 512).await.unwrap_err();
    assert!(error.to_string().contains("times with this request"), "{error}");
    write(&disk, 0, 1, 512).await;
}

#[tokio::test]
async fn a_server_that_stays_away_fails_what_waits_and_may_come_back() {
    let server = Server::start();
    let limit = Duration::from_millis(300);
    let config = Config { replacement_timeout: limit, ..Config::default() };
    let disk = NbdDisk::connect(server.url(), config).await.unwrap();
    write(&disk, 0, 5, 512).await;
    server.world().is_away = true;
    server.power_cut();
    let error = disk.read(0, Buf::new(512)).await.unwrap_err();
    assert!(error.to_string().contains("was gone for"), "{error}");
    assert!(disk.flush().await.is_err(), "at once");
    server.world().is_away = false;
    // What was kept is kept through the outage.
    let mut read = None;
    for _ in 0..1000 {
        read = disk.read(0, Buf::new(512)).await.ok();
        if read.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(read.expect("the server is back")[0], 5);
    assert_eq!(server.world().stable[0], 5);
}

#[tokio::test]
async fn a_failed_flush_is_told_once_and_what_is_kept_stays() {
    let server = Server::start();
    let disk = connected(&server).await;
    write(&disk, 0, 3, 512).await;
    server.world().failing_flushes = 1;
    assert!(matches!(disk.flush().await, Err(BlockError::Medium(_))));
    server.power_cut();
    disk.flush().await.unwrap();
    assert_eq!(server.world().stable[0], 3);
}

#[tokio::test]
async fn the_failure_of_writing_again_is_told_to_the_next_flush() {
    let server = Server::start();
    let disk = connected(&server).await;
    write(&disk, 0, 3, 512).await;
    server.world().failing_flushes = 1;
    server.power_cut();
    let error = disk.flush().await.unwrap_err();
    assert!(error.to_string().contains("EIO"), "{error}");
    disk.flush().await.unwrap();
}

#[tokio::test]
async fn half_of_the_limit_makes_the_disk_flush_by_itself() {
    let server = Server::start();
    let config = Config { unflushed_len_max: 64 << 10, ..config() };
    let disk = NbdDisk::connect(server.url(), config).await.unwrap();
    for n in 0..64 {
        write(&disk, n * 4096, n as u8 + 1, 4096).await;
    }
    assert!(server.world().count(Command::FLUSH) >= 4);
    server.power_cut();
    disk.flush().await.unwrap();
    let stable = server.world().stable.clone();
    for n in 0..64usize {
        assert_eq!(stable[n * 4096], n as u8 + 1);
    }
}

#[tokio::test]
async fn writes_fail_when_no_more_can_be_kept_and_nothing_can_be_flushed() {
    let server = Server::start();
    let config = Config { unflushed_len_max: 16 << 10, ..config() };
    let disk = NbdDisk::connect(server.url(), config).await.unwrap();
    server.world().failing_flushes = u32::MAX;
    let mut failed = None;
    for n in 0..64 {
        failed = disk.write(n * 4096, data(1, 4096), WriteFlags::NONE).await.err();
        if failed.is_some() {
            break;
        }
    }
    assert!(failed.expect("no end of room").to_string().contains("EIO"));
}

#[tokio::test]
async fn a_server_that_cannot_flush_is_not_vouched_for_after_it_was_away() {
    let server = Server::start();
    server.world().flags = Flags::HAS_FLAGS;
    let disk = connected(&server).await;
    assert!(!disk.info().can_flush && !disk.info().volatile_cache);
    write(&disk, 0, 3, 512).await;
    disk.flush().await.unwrap();
    server.power_cut();
    disk.read(0, Buf::new(512)).await.unwrap();
    let error = disk.flush().await.unwrap_err();
    assert!(error.to_string().contains("may be lost"), "{error}");
    disk.flush().await.unwrap();
}

#[tokio::test]
async fn writes_are_forced_where_a_server_knows_nothing_but_fua() {
    let server = Server::start();
    server.world().flags = Flags::HAS_FLAGS.with(Flags::SEND_FUA);
    let disk = connected(&server).await;
    write(&disk, 0, 3, 512).await;
    disk.flush().await.unwrap();
    assert!(server.world().seen[0].flags.contains(CommandFlags::FUA));
    server.power_cut();
    assert_eq!(disk.read(0, Buf::new(512)).await.unwrap()[0], 3);
}

#[tokio::test]
async fn fua_is_a_write_and_a_flush_where_there_is_none() {
    let server = Server::start();
    server.world().flags = server::ALL.without(Flags::SEND_FUA).without(Flags::SEND_WRITE_ZEROES);
    let disk = connected(&server).await;
    disk.write(0, data(1, 512), WriteFlags::FUA).await.unwrap();
    let flushed = |server: &Server| {
        let world = server.world();
        (world.stable[0], world.count(Command::FLUSH))
    };
    assert_eq!(flushed(&server), (1, 1));
    disk.zero(0, 512, ZeroFlags::new(true, true)).await.unwrap();
    assert_eq!(flushed(&server), (0, 2));
    assert_eq!(server.world().count(Command::WRITE), 2);
}

#[tokio::test]
async fn where_others_write_nothing_is_written_again_and_the_loss_is_told() {
    let server = Server::start();
    let disk = NbdDisk::connect(server.url(), Config { shared: true, ..config() }).await.unwrap();
    write(&disk, 0, 3, 512).await;
    server.power_cut();
    let error = disk.flush().await.unwrap_err();
    assert!(error.to_string().contains("unflushed bytes are lost"), "{error}");
    assert_eq!(server.world().count(Command::WRITE), 1);
    disk.flush().await.unwrap();
}

#[tokio::test]
async fn another_export_is_not_taken_for_the_one_that_was_there() {
    let server = Server::start();
    let limit = Duration::from_millis(500);
    let config = Config { replacement_timeout: limit, ..Config::default() };
    let disk = NbdDisk::connect(server.url(), config).await.unwrap();
    server.world().size = SIZE / 2;
    server.power_cut();
    let error = disk.flush().await.unwrap_err();
    assert!(error.to_string().contains("it had 1048576 bytes, and has 524288"), "{error}");
    // A larger one is.
    let mut growth = disk.growth();
    server.world().size = SIZE * 2;
    growth.changed().await.unwrap();
    assert_eq!((*growth.borrow(), disk.info().size), (SIZE * 2, SIZE * 2));
}

#[tokio::test]
async fn what_a_server_makes_up_ends_the_connection_and_nothing_else() {
    let server = Server::start();
    let disk = connected(&server).await;
    fn chunk(kind: ChunkType, cookie: u64, rest: &[u8]) -> Vec<u8> {
        [&chunk_header(kind, cookie, rest.len() as u32)[..], rest].concat()
    }
    let lies: [Lie; 11] = [
        Box::new(|_| vec![0; 64]),
        Box::new(|cookie| simple_reply(None, cookie + 1000).to_vec()),
        Box::new(|cookie| simple_reply(None, cookie).to_vec()),
        Box::new(|cookie| chunk(ChunkType(77), cookie, &[0; 8])),
        Box::new(|cookie| chunk(ChunkType::NONE, cookie, &[])),
        Box::new(|cookie| chunk(ChunkType::OFFSET_DATA, cookie, &[0xff; 16])),
        Box::new(|cookie| chunk(ChunkType::OFFSET_HOLE, cookie, &[0; 12])),
        Box::new(|cookie| chunk(ChunkType::BLOCK_STATUS, cookie, &[0; 12])),
        Box::new(|cookie| chunk(ChunkType::ERROR, cookie, &[0; 6])),
        Box::new(|cookie| chunk_header(ChunkType::ERROR, cookie, u32::MAX).to_vec()),
        Box::new(|cookie| chunk_header(ChunkType::OFFSET_DATA, cookie, u32::MAX).to_vec()),
    ];
    for (number, lie) in lies.into_iter().enumerate() {
        server.world().lie = Some(lie);
        let before = server.world().connections;
        let read = disk.read(0, Buf::new(512)).await;
        if number == 8 {
            // A well-formed error of no known code: the request fails, the connection stays.
            assert!(read.is_err());
        } else {
            read.unwrap();
            assert!(server.world().connections > before, "{number}");
        }
        write(&disk, 0, 1, 512).await;
    }
}

#[tokio::test]
async fn errors_of_the_server_are_told_by_their_kind() {
    let server = Server::start();
    let disk = connected(&server).await;
    for (code, kind) in [
        (ErrorCode::EPERM, "read-only"),
        (ErrorCode::ENOSPC, "no space"),
        (ErrorCode::ENOTSUP, "not supported"),
        (ErrorCode::EIO, "EIO"),
        (ErrorCode(99), "ErrorCode(0x63)"),
    ] {
        let lie: Lie = Box::new(move |cookie| simple_reply(Some(code), cookie).to_vec());
        server.world().lie = Some(lie);
        let error = disk.write(0, data(1, 512), WriteFlags::NONE).await.unwrap_err().to_string();
        assert!(error.contains(kind), "{error}");
    }
}

#[tokio::test]
async fn an_export_that_is_no_disk_is_refused_at_once() {
    let server = Server::start();
    server.world().size = 1000;
    let error = NbdDisk::connect(server.url(), config()).await.unwrap_err();
    assert!(matches!(error, ConnectError::Size { size: 1000, block_size: 512 }), "{error}");
    let mut url = server.url();
    url.address = crate::url::Address::Unix("/nonexistent/socket".into());
    let error = NbdDisk::connect(url, config()).await.unwrap_err();
    assert!(error.to_string().starts_with("cannot connect: "), "{error}");
}
