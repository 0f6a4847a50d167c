//! Requests as browsers send them, over a socket, to a file on a device that lets reads go one by
//! one.

#![allow(clippy::unwrap_used)] // helpers of tests fail as tests do

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use block::backend::MemoryDevice;
use block::layer::{self, ReadOnlyLayer};
use block::{BlockDevice, BlockError, Buf, Device, DeviceInfo, Extent, Io, WriteFlags};
use files::{FileExtent, FileReader, Name};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use media::{Resource, respond};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

const SIZE: usize = 24 << 20;
/// Reads that are let through at first: enough for the bytes of [`beginning`], though the first
/// reads of a stream are short.
const FIRST_READS: usize = 8;

/// Lets reads end when they are allowed to, and knows what became of them.
struct Gate {
    inner: Arc<MemoryDevice>,
    reads: Arc<Reads>,
}

struct Reads {
    asked: AtomicUsize,
    asked_bytes: AtomicUsize,
    done: AtomicUsize,
    done_bytes: AtomicUsize,
    dropped: AtomicUsize,
    gate: Semaphore,
}

/// Counts a read that nobody waits for any more.
struct Awaited(Arc<Reads>);

impl Drop for Awaited {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Relaxed);
    }
}

impl layer::Reads for Gate {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        let bytes = buf.len();
        self.reads.asked.fetch_add(1, Relaxed);
        self.reads.asked_bytes.fetch_add(bytes, Relaxed);
        let awaited = Awaited(Arc::clone(&self.reads));
        let inner = Arc::clone(&self.inner);
        Io::later(async move {
            let permit = awaited.0.gate.acquire().await;
            permit.map_err(|_| BlockError::Unreachable("gone".into()))?.forget();
            awaited.0.done.fetch_add(1, Relaxed);
            awaited.0.done_bytes.fetch_add(bytes, Relaxed);
            let read = inner.read(offset, buf).await;
            awaited.0.dropped.fetch_sub(1, Relaxed); // it is about to be, in good order
            read
        })
    }

    fn extents(&self, _: u64, _: u64) -> Io<Vec<Extent>> {
        Io::err(BlockError::ReadOnly)
    }
}

struct Served {
    port: u16,
    content: Vec<u8>,
    reads: Arc<Reads>,
}

/// Serves one file of 24 MiB in two halves, the second first on the disk, on a free port.
async fn serve(permits: usize) -> Served {
    let disk: Vec<u8> = (0..SIZE).map(|i| (i / 5 % 253) as u8).collect();
    let inner = MemoryDevice::new(SIZE as u64, 512).unwrap();
    inner.write(0, disk.clone().into(), WriteFlags::NONE).await.unwrap();
    let reads = Arc::new(Reads {
        asked: AtomicUsize::new(0),
        asked_bytes: AtomicUsize::new(0),
        done: AtomicUsize::new(0),
        done_bytes: AtomicUsize::new(0),
        dropped: AtomicUsize::new(0),
        gate: Semaphore::new(permits),
    });
    let gate = Gate { inner: Arc::new(inner), reads: Arc::clone(&reads) };
    let device: Device = Arc::new(ReadOnlyLayer::new(gate));
    let half = SIZE as u64 / 2;
    let extent = |offset, at| FileExtent { offset, len: half, at: Some(at) };
    let file = FileReader::new(device, vec![extent(0, half), extent(half, 0)]);
    let resource = Resource::new(file, "ad2c0bb6", &Name::from("a film.MP4"), 0xbeef);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let resource = resource.clone();
            tokio::spawn(async move {
                let service = service_fn(|request: Request<Incoming>| {
                    let response = respond(request.method(), request.headers(), &resource);
                    async move { Ok::<_, std::convert::Infallible>(response) }
                });
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    let content = [&disk[SIZE / 2..], &disk[..SIZE / 2]].concat();
    Served { port, content, reads }
}

impl Served {
    async fn connect(&self, method: &str, fields: &str) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let request =
            format!("{method} /film HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{fields}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    /// The head of the response in small letters, and its body.
    async fn ask(&self, method: &str, fields: &str) -> (String, Vec<u8>) {
        let mut stream = self.connect(method, fields).await;
        let mut all = Vec::new();
        let read = stream.read_to_end(&mut all);
        tokio::time::timeout(Duration::from_secs(30), read).await.unwrap().unwrap();
        let end = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        (String::from_utf8(all[..end].to_vec()).unwrap().to_lowercase(), all.split_off(end))
    }
}

#[tokio::test]
async fn ranges_are_parts_of_the_file() {
    let served = serve(1_000_000).await;
    let whole = &served.content;
    let half = SIZE / 2;
    for (range, part) in [
        ("bytes=0-1", 0..2),
        ("bytes=1000000-", 1_000_000..SIZE),
        ("bytes=-70001", SIZE - 70_001..SIZE),
        (&format!("bytes={}-{}", half - 10, half + 9), half - 10..half + 10),
    ] {
        let (head, body) = served.ask("GET", &format!("Range: {range}\r\n")).await;
        assert!(head.starts_with("http/1.1 206 "), "{head}");
        let told = format!("content-range: bytes {}-{}/{SIZE}\r\n", part.start, part.end - 1);
        assert!(head.contains(&told), "{head}");
        assert!(head.contains("content-type: video/mp4\r\n"), "{head}");
        assert!(body == whole[part], "{range}");
    }
}

#[tokio::test]
async fn several_ranges_are_parts_of_one_body() {
    let served = serve(1_000_000).await;
    let half = SIZE / 2;
    let wanted = [SIZE - 5..SIZE, 0..70_000, half - 10..half + 10];
    let ranges = wanted.iter().map(|part| format!("{}-{}", part.start, part.end - 1));
    let ranges = ranges.collect::<Vec<_>>().join(", ");
    let (head, body) = served.ask("GET", &format!("Range: bytes={ranges}\r\n")).await;
    assert!(head.starts_with("http/1.1 206 "), "{head}");
    assert!(!head.contains("content-range"), "{head}");
    assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head}");
    let (_, boundary) = head.split_once("multipart/byteranges; boundary=").unwrap();
    let boundary = boundary.lines().next().unwrap();
    let mut rest = &body[..];
    for part in wanted {
        let begin = format!(
            "\r\n--{boundary}\r\nContent-Type: video/mp4\r\nContent-Range: bytes {}-{}/{SIZE}\r\n\r\n",
            part.start,
            part.end - 1
        );
        assert!(rest.starts_with(begin.as_bytes()), "{:?}", &rest[..begin.len().min(rest.len())]);
        rest = &rest[begin.len()..];
        assert!(rest[..part.len()] == served.content[part.clone()], "{part:?}");
        rest = &rest[part.len()..];
    }
    assert_eq!(rest, format!("\r\n--{boundary}--\r\n").as_bytes());
}

#[tokio::test]
async fn conditions_are_kept_to() {
    let served = serve(1_000_000).await;
    let (head, body) = served.ask("HEAD", "Range: bytes=0-1\r\n").await;
    assert!(head.starts_with("http/1.1 200 ") && body.is_empty(), "{head}");
    assert!(head.contains(&format!("content-length: {SIZE}\r\n")), "{head}");
    let tag = head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap().to_owned();
    let range = "Range: bytes=5-6\r\n";
    for (method, fields, status, len) in [
        ("GET", format!("{range}If-Range: {tag}\r\n"), 206, 2),
        ("GET", format!("{range}If-Range: \"other\"\r\n"), 200, SIZE),
        ("GET", format!("{range}If-Range: W/{tag}\r\n"), 200, SIZE),
        ("GET", format!("{range}If-Range: Thu, 26 Nov 2026 09:00:00 GMT\r\n"), 200, SIZE),
        ("GET", format!("If-None-Match: \"x\", W/{tag}\r\n"), 304, 0),
        ("GET", "If-None-Match: \"x\"\r\nRange: bytes=5-6\r\n".into(), 206, 2),
        ("GET", format!("If-Match: {tag}\r\nRange: bytes=5-6\r\n"), 206, 2),
        ("GET", "If-Match: \"x\"\r\n".into(), 412, 0),
        ("GET", format!("Range: bytes={SIZE}-\r\n"), 416, 0),
        ("GET", format!("Range: bytes={}0-0\r\n", "0-1,".repeat(16)), 416, 0),
        ("POST", "Content-Length: 0\r\n".into(), 405, 0),
    ] {
        let (head, body) = served.ask(method, &fields).await;
        assert!(head.starts_with(&format!("http/1.1 {status} ")), "{fields}: {head}");
        assert_eq!(body.len(), len, "{fields}");
        assert_eq!(head.contains(&format!("content-range: bytes */{SIZE}")), status == 416);
        assert_eq!(head.contains("allow: get, head"), status == 405);
    }
}

/// Takes 256 KiB of a response; how much that was.
async fn beginning(stream: &mut TcpStream) -> usize {
    let mut some = vec![0; 256 << 10];
    let read = stream.read_exact(&mut some);
    tokio::time::timeout(Duration::from_secs(30), read).await.unwrap().unwrap()
}

#[tokio::test]
async fn who_goes_away_has_nothing_read_any_more() {
    let served = serve(FIRST_READS).await;
    let mut stream = served.connect("GET", "Range: bytes=0-\r\n").await;
    beginning(&mut stream).await;
    let reads = &served.reads;
    let under_way = reads.asked.load(Relaxed) - reads.done.load(Relaxed);
    let bytes = reads.asked_bytes.load(Relaxed) - reads.done_bytes.load(Relaxed);
    assert!((1..=2 << 20).contains(&bytes), "{bytes} bytes for who has taken little");
    drop(stream);
    let all_dropped = async {
        while reads.dropped.load(Relaxed) < under_way {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), all_dropped).await.unwrap();
    reads.gate.add_permits(1000);
    tokio::task::yield_now().await;
    assert_eq!(reads.asked.load(Relaxed) - reads.done.load(Relaxed), under_way);
}

#[tokio::test]
async fn a_failing_disk_ends_the_connection_before_the_length_that_was_told() {
    let served = serve(FIRST_READS).await;
    let mut stream = served.connect("GET", "").await;
    let begun = beginning(&mut stream).await;
    served.reads.gate.close();
    let mut rest = Vec::new();
    let read = stream.read_to_end(&mut rest);
    let _ = tokio::time::timeout(Duration::from_secs(10), read).await.unwrap();
    assert!(begun + rest.len() < SIZE);
}
