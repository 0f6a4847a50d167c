//! The NBD server against real clients (qemu, libnbd, fio) and against hostile ones.

#![allow(clippy::unwrap_used)] // a failure is the test's

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::{TestDevice, have, pattern, run, text};
use export::nbd::{BindError, ExportConfig, Listen, LocalAddr, Server};
use nbd::wire::{Command, CommandFlags, InfoType, OPTION_MAGIC, OptionCode, RequestHeader};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const MIB: u64 = 1 << 20;

struct Running {
    addr: LocalAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), block::BlockError>>,
    _folder: tempfile::TempDir,
}

impl Running {
    async fn unix(device: Arc<TestDevice>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listen = Listen::Unix(folder.path().join("a socket"));
        Self::start(device, listen, folder).await
    }

    async fn tcp(device: Arc<TestDevice>, address: &str) -> Self {
        let listen = Listen::Tcp(address.parse().unwrap());
        Self::start(device, listen, tempfile::tempdir().unwrap()).await
    }

    async fn start(device: Arc<TestDevice>, listen: Listen, _folder: tempfile::TempDir) -> Self {
        let config = ExportConfig { name: "disk".into(), device };
        let server = Server::bind(listen, config).await.unwrap();
        let addr = server.local_addr().clone();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        Self { addr, stop, task, _folder }
    }

    fn path(&self) -> PathBuf {
        match &self.addr {
            LocalAddr::Unix(path) => path.clone(),
            LocalAddr::Tcp(_) => panic!("not a Unix socket"),
        }
    }

    async fn connect(&self) -> UnixStream {
        UnixStream::connect(self.path()).await.unwrap()
    }

    async fn stop(self) {
        let _ = self.stop.send(());
        self.task.await.unwrap().unwrap();
    }
}

/// A client that has finished the handshake with GO and no extensions.
async fn client(server: &Running) -> UnixStream {
    let mut stream = server.connect().await;
    stream.read_exact(&mut [0; 18]).await.unwrap();
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend(OPTION_MAGIC.to_be_bytes());
    hello.extend(OptionCode::GO.0.to_be_bytes());
    hello.extend(8u32.to_be_bytes());
    hello.extend([0, 0, 0, 0, 0, 1]);
    hello.extend(InfoType::BLOCK_SIZE.0.to_be_bytes());
    stream.write_all(&hello).await.unwrap();
    stream.read_exact(&mut [0; 20 + 12 + 20 + 14 + 20]).await.unwrap();
    stream
}

fn request(command: Command, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let flags = CommandFlags(0);
    RequestHeader { flags, command, cookie, offset, length }.to_bytes().to_vec()
}

/// Reads a simple reply; returns error and cookie.
async fn reply(stream: &mut UnixStream) -> (u32, u64) {
    let mut head = [0; 16];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(head[..4], 0x6744_6698u32.to_be_bytes());
    let error = u32::from_be_bytes(head[4..8].try_into().unwrap());
    (error, u64::from_be_bytes(head[8..].try_into().unwrap()))
}

async fn at_end(stream: &mut UnixStream) -> bool {
    // A reset is as final as an end.
    stream.read(&mut [0; 1]).await.is_ok_and(|count| count == 0)
        || stream.read(&mut [0; 1]).await.is_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn qemu_img_and_nbdcopy_both_ways() {
    if !have("qemu_img_and_nbdcopy_both_ways", &["qemu-img", "nbdcopy"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let mut content = vec![0; 24 * MIB as usize];
    content[..5 * MIB as usize].copy_from_slice(&pattern(5 * MIB as usize, 1));
    content[20 * MIB as usize..21 * MIB as usize].copy_from_slice(&pattern(MIB as usize, 2));
    std::fs::write(&image, &content).unwrap();
    for address in [None, Some("127.0.0.1:0"), Some("[::1]:0")] {
        for block_size in [512, 4096] {
            let device = Arc::new(TestDevice::new(24 * MIB, block_size));
            let server = match address {
                None => Running::unix(device.clone()).await,
                Some(address) => Running::tcp(device.clone(), address).await,
            };
            let uri = server.addr.uri();
            run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", text(&image), &uri]).await;
            assert!(device.peek(0, content.len()) == content);
            assert_eq!(device.allocated(), 6 * MIB, "holes stay holes");
            run("qemu-img", &["compare", "-f", "raw", "-F", "raw", text(&image), &uri]).await;
            let back = folder.path().join("back");
            run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, text(&back)]).await;
            assert!(std::fs::read(&back).unwrap() == content);
            let copy = folder.path().join("copy");
            run("nbdcopy", &[&uri, text(&copy)]).await;
            assert!(std::fs::read(&copy).unwrap() == content);
            content.rotate_left(MIB as usize);
            std::fs::write(&image, &content).unwrap();
            run("nbdcopy", &["--flush", text(&image), &uri]).await;
            assert!(device.peek(0, content.len()) == content);
            assert!(device.flushes.load(Ordering::Relaxed) > 0);
            server.stop().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nbdinfo_sees_the_export_and_its_holes() {
    if !have("nbdinfo_sees_the_export_and_its_holes", &["nbdinfo", "qemu-img"]) {
        return;
    }
    let device = Arc::new(TestDevice::new(16 * MIB, 4096));
    let server = Running::unix(device.clone()).await;
    let uri = server.addr.uri();
    let mut stream = client(&server).await;
    let mut write = request(Command::WRITE, 1, 4 * MIB, MIB as u32);
    write.extend(pattern(MIB as usize, 3));
    stream.write_all(&write).await.unwrap();
    assert_eq!(reply(&mut stream).await, (0, 1));
    let map = run("nbdinfo", &["--map", &uri]).await;
    let map: Vec<Vec<&str>> = map.lines().map(|l| l.split_whitespace().take(3).collect()).collect();
    let expected =
        [["0", "4194304", "3"], ["4194304", "1048576", "0"], ["5242880", "11534336", "3"]];
    assert_eq!(map, expected);
    let list = run("nbdinfo", &["--list", &uri]).await;
    for line in [
        "export=\"disk\":",
        "block_size_minimum: 4096",
        "can_multi_conn: true",
        "can_fua: true",
        "can_fast_zero: true",
        "base:allocation",
        "is_read_only: false",
        "block_size_maximum: 33554432",
        "is_rotational: false",
        "can_df: true",
    ] {
        assert!(list.contains(line), "{line} missing in\n{list}");
    }
    drop(stream);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fio_verifies_what_it_wrote() {
    if !have("fio_verifies_what_it_wrote", &["fio"]) {
        return;
    }
    for delay in [None, Some(Duration::from_millis(1))] {
        let mut device = TestDevice::new(64 * MIB, 512);
        device.delay = delay;
        let server = Running::unix(Arc::new(device)).await;
        let uri = server.addr.uri();
        let folder = tempfile::tempdir().unwrap();
        let uri = format!("--uri={uri}");
        let args = [
            "--name=v",
            "--ioengine=nbd",
            &uri,
            "--rw=randwrite",
            "--bsrange=512-128k",
            "--iodepth=32",
            "--size=32M",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--minimal",
        ];
        let output = tokio::process::Command::new("fio")
            .args(args)
            .current_dir(folder.path())
            .output()
            .await
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{stderr}");
        if stderr.contains("engine nbd not loadable") {
            eprintln!("SKIPPED fio_verifies_what_it_wrote: fio has no nbd engine");
        }
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn qemu_io_does_odd_things() {
    if !have("qemu_io_does_odd_things", &["qemu-io"]) {
        return;
    }
    let device = Arc::new(TestDevice::new(16 * MIB, 512));
    let server = Running::unix(device.clone()).await;
    let uri = server.addr.uri();
    let args = [
        "-f",
        "raw",
        "-c",
        "write -P 0x11 0 1M",
        "-c",
        "write -f -P 0x22 1M 512",
        "-c",
        "write -z -u 65536 65536",
        "-c",
        "discard 131072 65536",
        "-c",
        "flush",
        "-c",
        "read -P 0x11 0 65536",
        "-c",
        "read -P 0 65536 131072",
        "-c",
        "read -P 0x22 1M 512",
        "-c",
        "aio_write -P 0x33 2M 3M",
        "-c",
        "aio_write -P 0x44 6M 777k",
        "-c",
        "aio_flush",
        "-c",
        "read -P 0x33 2M 3M",
        "-c",
        "read -P 0x44 6M 777k",
        "-c",
        "read 15M 1M",
        &uri,
    ];
    let output = run("qemu-io", &args).await;
    assert!(!output.contains("failed") && !output.contains("error"), "{output}");
    assert_eq!(device.peek(65536, 512), [0; 512]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_requests_take_one_delay() {
    let delay = Duration::from_millis(100);
    let server = Running::unix(Arc::new(TestDevice::new(64 * MIB, 512).delayed(delay))).await;
    let mut stream = client(&server).await;
    let begin = Instant::now();
    let requests: Vec<u8> =
        (0..64).flat_map(|i| request(Command::READ, i, i * 4096, 4096)).collect();
    stream.write_all(&requests).await.unwrap();
    let mut cookies = Vec::new();
    for _ in 0..64 {
        let (error, cookie) = reply(&mut stream).await;
        assert_eq!(error, 0);
        stream.read_exact(&mut [0; 4096]).await.unwrap();
        cookies.push(cookie);
    }
    let elapsed = begin.elapsed();
    cookies.sort_unstable();
    assert!(cookies.into_iter().eq(0..64), "every request is answered once");
    assert!(elapsed >= delay && elapsed < 10 * delay, "{elapsed:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_blocks_work_for_clients_that_know_no_blocks() {
    let device = TestDevice::new(MIB, 4096).delayed(Duration::from_millis(1));
    let device = Arc::new(device);
    let server = Running::unix(device.clone()).await;
    let mut stream = server.connect().await;
    stream.read_exact(&mut [0; 18]).await.unwrap();
    // EXPORT_NAME: the old way, on which no block size can be told.
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend(OPTION_MAGIC.to_be_bytes());
    hello.extend(OptionCode::EXPORT_NAME.0.to_be_bytes());
    hello.extend(4u32.to_be_bytes());
    hello.extend(b"disk");
    stream.write_all(&hello).await.unwrap();
    stream.read_exact(&mut [0; 10]).await.unwrap();
    // All in flight at once, all in the same three blocks.
    let mut model = vec![0; 3 * 4096];
    let mut requests = Vec::new();
    for i in 0..100u64 {
        let (offset, len) = (i * 120 + 7, 120);
        requests.extend(request(Command::WRITE, i, offset, len));
        let data = pattern(len as usize, i + 1);
        model[offset as usize..][..len as usize].copy_from_slice(&data);
        requests.extend(data);
    }
    stream.write_all(&requests).await.unwrap();
    for _ in 0..100 {
        assert_eq!(reply(&mut stream).await.0, 0);
    }
    assert!(device.peek(0, model.len()) == model);
    // A client that was told gets EINVAL.
    let mut stream = client(&server).await;
    stream.write_all(&request(Command::READ, 5, 7, 120)).await.unwrap();
    assert_eq!(reply(&mut stream).await, (22, 5));
    drop(stream);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_the_device_reach_the_client_and_the_connection_goes_on() {
    let device = Arc::new(TestDevice::new(MIB, 512));
    let server = Running::unix(device.clone()).await;
    let mut stream = client(&server).await;
    device.fail_reads.store(true, Ordering::Relaxed);
    device.fail_writes.store(true, Ordering::Relaxed);
    stream.write_all(&request(Command::READ, 1, 0, 512)).await.unwrap();
    assert_eq!(reply(&mut stream).await, (5, 1));
    stream.write_all(&request(Command::WRITE, 2, 0, 512)).await.unwrap();
    stream.write_all(&[1; 512]).await.unwrap();
    assert_eq!(reply(&mut stream).await, (28, 2));
    // Beyond the end: the payload is skipped and the stream stays in step.
    stream.write_all(&request(Command::WRITE, 3, MIB, 1024)).await.unwrap();
    stream.write_all(&[1; 1024]).await.unwrap();
    assert_eq!(reply(&mut stream).await, (28, 3));
    stream.write_all(&request(Command(77), 4, 0, 0)).await.unwrap();
    assert_eq!(reply(&mut stream).await, (22, 4));
    stream.write_all(&request(Command::FLUSH, 5, 0, 0)).await.unwrap();
    assert_eq!(reply(&mut stream).await, (0, 5));
    stream.write_all(&request(Command::DISC, 6, 0, 0)).await.unwrap();
    assert!(at_end(&mut stream).await);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_clients_are_dropped_and_others_served() {
    let device = Arc::new(TestDevice::new(MIB, 512));
    let server = Running::unix(device.clone()).await;
    // Junk instead of a handshake.
    let mut junk = server.connect().await;
    junk.write_all(&pattern(4096, 9)).await.unwrap();
    junk.read_exact(&mut [0; 18]).await.unwrap();
    assert!(at_end(&mut junk).await);
    // An option longer than memory.
    let mut long = server.connect().await;
    long.read_exact(&mut [0; 18]).await.unwrap();
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend(OPTION_MAGIC.to_be_bytes());
    hello.extend(OptionCode::GO.0.to_be_bytes());
    hello.extend(u32::MAX.to_be_bytes());
    long.write_all(&hello).await.unwrap();
    assert!(at_end(&mut long).await);
    // A request out of step, a write longer than allowed.
    let mut lost = client(&server).await;
    lost.write_all(&[0x55; 64]).await.unwrap();
    assert!(at_end(&mut lost).await);
    let mut long = client(&server).await;
    long.write_all(&request(Command::WRITE, 1, 0, u32::MAX)).await.unwrap();
    assert!(at_end(&mut long).await);
    // A client that leaves in the middle of a write leaves the device as it was.
    let mut leaving = client(&server).await;
    leaving.write_all(&request(Command::WRITE, 1, 0, 4096)).await.unwrap();
    leaving.write_all(&[0xff; 1000]).await.unwrap();
    drop(leaving);
    // A client that asks for much and reads nothing.
    let mut greedy = client(&server).await;
    let requests: Vec<u8> =
        (0..1000).flat_map(|i| request(Command::READ, i, 0, MIB as u32)).collect();
    greedy.write_all(&requests).await.unwrap();
    // Everybody else is served.
    let mut stream = client(&server).await;
    stream.write_all(&request(Command::READ, 1, 0, 512)).await.unwrap();
    assert_eq!(reply(&mut stream).await, (0, 1));
    let mut data = [1; 512];
    stream.read_exact(&mut data).await.unwrap();
    assert_eq!(data, [0; 512]);
    assert_eq!(device.writes.load(Ordering::Relaxed), 0);
    drop((greedy, stream));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_answers_what_is_under_way_and_flushes() {
    let device = TestDevice::new(MIB, 512).delayed(Duration::from_millis(100));
    let device = Arc::new(device);
    let server = Running::unix(device.clone()).await;
    let path = server.path();
    let mut stream = client(&server).await;
    let mut write = request(Command::WRITE, 9, 0, 512);
    write.extend([7; 512]);
    stream.write_all(&write).await.unwrap();
    while device.writes.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    let stopping = tokio::spawn(server.stop());
    assert_eq!(reply(&mut stream).await, (0, 9));
    assert!(at_end(&mut stream).await);
    stopping.await.unwrap();
    assert_eq!(device.peek(0, 512), [7; 512]);
    assert_eq!(device.flushes.load(Ordering::Relaxed), 1);
    assert!(!path.exists(), "the socket file is removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_after_the_shutdown_are_refused() {
    let device = Arc::new(TestDevice::new(MIB, 512).delayed(Duration::from_secs(1)));
    let server = Running::unix(device.clone()).await;
    let path = server.path();
    let mut stream = client(&server).await;
    stream.write_all(&request(Command::FLUSH, 1, 0, 0)).await.unwrap();
    while device.flushes.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    let stopping = tokio::spawn(server.stop());
    while path.exists() {
        tokio::task::yield_now().await;
    }
    // Until the server has seen its own signal a request may still be taken on.
    let mut cookie = 2;
    loop {
        stream.write_all(&request(Command::READ, cookie, 0, 0)).await.unwrap();
        let (error, replied) = reply(&mut stream).await;
        assert_eq!(replied, cookie);
        if error == 108 {
            break;
        }
        cookie += 1;
    }
    assert_eq!(reply(&mut stream).await, (0, 1), "what was under way is answered");
    assert!(at_end(&mut stream).await);
    stopping.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_stops_does_not_hold_up_the_shutdown() {
    let device = Arc::new(TestDevice::new(MIB, 512));
    let server = Running::unix(device.clone()).await;
    let stream = client(&server).await;
    let (mut receiving, mut sending) = stream.into_split();
    let writes: Vec<u8> = (0..64).flat_map(|i| request(Command::FLUSH, i, 0, 0)).collect();
    let flood = tokio::spawn(async move { while sending.write_all(&writes).await.is_ok() {} });
    let drink = tokio::spawn(async move {
        let mut replies = vec![0; 1 << 16];
        while receiving.read(&mut replies).await.is_ok_and(|count| count > 0) {}
    });
    while device.flushes.load(Ordering::Relaxed) < 1000 {
        tokio::task::yield_now().await;
    }
    let begin = Instant::now();
    server.stop().await;
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    flood.await.unwrap();
    drink.await.unwrap();
}

// With a paused clock time passes when everybody waits: limits are reached at once.

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_finish_the_handshake_is_dropped() {
    let server = Running::unix(Arc::new(TestDevice::new(MIB, 512))).await;
    let begin = tokio::time::Instant::now();
    let mut stream = server.connect().await;
    stream.read_exact(&mut [0; 18]).await.unwrap();
    stream.write_all(&[0, 0, 0, 3]).await.unwrap();
    assert!(at_end(&mut stream).await);
    assert!(begin.elapsed() >= Duration::from_secs(15));
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn clients_that_stall_do_not_hold_up_the_shutdown() {
    let device = Arc::new(TestDevice::new(MIB, 512));
    let server = Running::unix(device.clone()).await;
    // One takes no replies, one stops in the middle of a request.
    let mut greedy = client(&server).await;
    let requests: Vec<u8> =
        (0..100).flat_map(|i| request(Command::READ, i, 0, MIB as u32)).collect();
    greedy.write_all(&requests).await.unwrap();
    let mut stalled = client(&server).await;
    stalled.write_all(&request(Command::WRITE, 1, 0, 512)).await.unwrap();
    stalled.write_all(&[1; 511]).await.unwrap();
    let begin = tokio::time::Instant::now();
    server.stop().await;
    assert!(begin.elapsed() <= Duration::from_secs(30), "{:?}", begin.elapsed());
    assert_eq!(device.writes.load(Ordering::Relaxed), 0);
    assert_eq!(device.flushes.load(Ordering::Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_socket_file_is_private_and_only_stale_ones_are_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let device = Arc::new(TestDevice::new(MIB, 512));
    let bind = || {
        let config = ExportConfig { name: "disk".into(), device: device.clone() };
        Server::bind(Listen::Unix(path.clone()), config)
    };
    let server = bind().await.unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(bind().await, Err(BindError::InUse(_))));
    drop(server);
    assert!(!path.exists());
    // What a killed process leaves behind.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    drop(bind().await.unwrap());
    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(bind().await, Err(BindError::NotASocket(_))));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[tokio::test(flavor = "multi_thread")]
async fn read_only_and_plain_devices_say_so() {
    let mut device = TestDevice::new(MIB, 512);
    device.info.read_only = true;
    let server = Running::unix(Arc::new(device)).await;
    let mut stream = client(&server).await;
    let mut write = request(Command::WRITE, 1, 0, 512);
    write.extend([7; 512]);
    stream.write_all(&write).await.unwrap();
    assert_eq!(reply(&mut stream).await, (1, 1));
    drop(stream);
    server.stop().await;

    // No FUA, no zeroing, no trim of its own: flush and written zeroes do it.
    let mut device = TestDevice::new(4 * MIB, 512);
    device.info.can_fua = false;
    device.info.can_zero = false;
    device.info.can_trim = false;
    let device = Arc::new(device);
    let server = Running::unix(device.clone()).await;
    let mut stream = client(&server).await;
    let fua = |command, cookie, offset, length| {
        let flags = CommandFlags::FUA;
        RequestHeader { flags, command, cookie, offset, length }.to_bytes()
    };
    stream.write_all(&fua(Command::WRITE, 1, MIB, 512)).await.unwrap();
    stream.write_all(&[7; 512]).await.unwrap();
    assert_eq!(reply(&mut stream).await, (0, 1));
    assert_eq!(device.flushes.load(Ordering::Relaxed), 1);
    stream.write_all(&fua(Command::WRITE_ZEROES, 2, 512, 3 * MIB as u32)).await.unwrap();
    assert_eq!(reply(&mut stream).await, (0, 2));
    assert_eq!(device.peek(MIB, 512), [0; 512]);
    assert_eq!(device.flushes.load(Ordering::Relaxed), 2);
    drop(stream);
    server.stop().await;
}
