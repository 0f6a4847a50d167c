//! What a socket allows: two processes that only move the bytes of block I/O over loopback,
//! requests of 48 bytes and answers of 48 and a block (reads), or the other way round (writes). No
//! protocol, no disk, no tokio: what is left is the kernel's TCP, the wake-up of a process, and one
//! thread an end. `make bench` has its rows beside those of the targets; it prints JSON.
//!
//! cargo run --release -p enkaku-wanlab --example limit -- --rw read --depth 32 --time 3 [--spin]

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};

type Failure = Box<dyn std::error::Error>;

/// Length of an iSCSI header (RFC 7143 §11.2).
const HEADER_LEN: usize = 48;

/// Bytes of one read at most.
const READ_LEN: usize = 256 << 10;

/// Bytes of one write at most: the other end wakes up to the first 15 answers of 4 KiB while the
/// next ones are written.
const WRITE_LEN: usize = 64 << 10;

/// Moves requests and answers as fast as two processes can.
#[derive(Parser, Clone, Debug)]
struct Args {
    /// Which of the two carries the data.
    #[arg(long, value_enum, default_value = "read")]
    rw: Rw,
    /// Requests under way on each connection.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    depth: u32,
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    connections: u32,
    /// Bytes of data.
    #[arg(long, default_value_t = 4096)]
    bs: usize,
    /// Seconds.
    #[arg(long, default_value_t = 3.0)]
    time: f64,
    /// Both ends ask their sockets all the time, instead of sleeping until there is something.
    #[arg(long)]
    spin: bool,
    /// This is the end that answers: so the first process calls the second one.
    #[arg(long, hide = true)]
    answer: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Rw {
    Read,
    Write,
}

impl Args {
    fn request_len(&self) -> usize {
        HEADER_LEN + if self.rw == Rw::Write { self.bs } else { 0 }
    }

    fn answer_len(&self) -> usize {
        HEADER_LEN + if self.rw == Rw::Read { self.bs } else { 0 }
    }
}

fn main() -> Result<(), Failure> {
    let args = Args::parse();
    if args.answer { answer(&args) } else { ask(&args) }
}

/// The end that answers, until everybody has gone.
fn answer(args: &Args) -> Result<(), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    let mut ends = Vec::new();
    for _ in 0..args.connections {
        ends.push(End::new(listener.accept()?.0)?);
    }
    let mut ready = Ready::new(&ends, args.spin)?;
    let mut buffers = Buffers::new();
    let mut open = ends.len();
    while open > 0 {
        for index in ready.wait()? {
            let end = &mut ends[index];
            let Some(requests) = end.receive(&mut buffers, args.request_len())? else {
                ready.forget(index, end)?;
                open -= 1;
                continue;
            };
            end.owed += requests * args.answer_len();
            end.send(&buffers)?;
            ready.listen(index, end)?;
        }
    }
    Ok(())
}

/// The end that asks, and says what it saw.
fn ask(args: &Args) -> Result<(), Failure> {
    let mut other = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .arg("--answer")
        .stdout(Stdio::piped())
        .spawn()?;
    let mut address = String::new();
    let said = other.stdout.take().ok_or("the other end says nothing")?;
    BufReader::new(said).read_line(&mut address)?;
    let address: SocketAddr = address.trim().parse()?;
    let mut ends = Vec::new();
    for _ in 0..args.connections {
        ends.push(End::new(TcpStream::connect(address)?)?);
    }
    let before_s = cpu_s(libc::RUSAGE_SELF)?;
    let seen = load(args, &mut ends)?;
    let client_cpu_s = cpu_s(libc::RUSAGE_SELF)? - before_s;
    drop(ends);
    if !other.wait()?.success() {
        return Err("the other end failed".into());
    }
    let target_cpu_s = cpu_s(libc::RUSAGE_CHILDREN)?;
    println!("{}", seen.report(args, client_cpu_s, target_cpu_s));
    Ok(())
}

/// What the asking end saw.
struct Seen {
    seconds: f64,
    latencies_ns: Vec<u32>,
    /// Operations of each connection.
    of_each: Vec<u64>,
}

fn load(args: &Args, ends: &mut [End]) -> Result<Seen, Failure> {
    let mut ready = Ready::new(ends, args.spin)?;
    let mut buffers = Buffers::new();
    let mut seen = Seen { seconds: 0.0, latencies_ns: Vec::new(), of_each: vec![0; ends.len()] };
    let begin = Instant::now();
    let mut asked: Vec<VecDeque<Instant>> = Vec::new();
    for (index, end) in ends.iter_mut().enumerate() {
        asked.push(std::iter::repeat_n(begin, args.depth as usize).collect());
        end.owed = args.depth as usize * args.request_len();
        end.send(&buffers)?;
        ready.listen(index, end)?;
    }
    let length = Duration::from_secs_f64(args.time);
    while begin.elapsed() < length {
        for index in ready.wait()? {
            let end = &mut ends[index];
            let answers = end.receive(&mut buffers, args.answer_len())?;
            let answers = answers.ok_or("the other end hung up")?;
            let now = Instant::now();
            for asked_at in asked[index].drain(..answers) {
                let latency = now - asked_at;
                seen.latencies_ns.push(u32::try_from(latency.as_nanos()).unwrap_or(u32::MAX));
            }
            seen.of_each[index] += answers as u64;
            asked[index].extend(std::iter::repeat_n(now, answers));
            end.owed += answers * args.request_len();
            end.send(&buffers)?;
            ready.listen(index, end)?;
        }
    }
    seen.seconds = begin.elapsed().as_secs_f64();
    Ok(seen)
}

impl Seen {
    fn report(mut self, args: &Args, client_cpu_s: f64, target_cpu_s: f64) -> serde_json::Value {
        self.latencies_ns.sort_unstable();
        let last = self.latencies_ns.len().saturating_sub(1);
        let percentile = |part: f64| {
            let latency = self.latencies_ns.get((last as f64 * part) as usize);
            latency.map_or(0.0, |ns| f64::from(*ns) / 1000.0)
        };
        let operations: u64 = self.of_each.iter().sum();
        let mean = operations as f64 / self.of_each.len() as f64;
        let slowest = self.of_each.iter().min().copied().unwrap_or(0) as f64;
        serde_json::json!({
            "rw": if args.rw == Rw::Read { "read" } else { "write" },
            "block_size": args.bs,
            "depth": args.depth,
            "connections": args.connections,
            "spin": args.spin,
            "seconds": self.seconds,
            "bytes": operations * args.bs as u64,
            "iops": operations as f64 / self.seconds,
            "lat_us": { "p50": percentile(0.5), "p99": percentile(0.99) },
            "slowest_to_mean": if mean > 0.0 { slowest / mean } else { 0.0 },
            "client_cpu_s": client_cpu_s,
            "target_cpu_s": target_cpu_s,
        })
    }
}

struct Buffers {
    incoming: Box<[u8]>,
    /// Nobody looks at the content.
    outgoing: Box<[u8]>,
}

impl Buffers {
    fn new() -> Self {
        Self {
            incoming: vec![0; READ_LEN].into_boxed_slice(),
            outgoing: vec![0x5a; WRITE_LEN].into_boxed_slice(),
        }
    }
}

/// One end of a connection.
struct End {
    stream: TcpStream,
    /// Bytes of a message that is not complete.
    begun: usize,
    /// Bytes that are still to be sent.
    owed: usize,
    /// The socket is full: epoll tells when it is not.
    waits_to_send: bool,
}

impl End {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, begun: 0, owed: 0, waits_to_send: false })
    }

    /// One read. Messages that are complete with it; `None` at the end.
    fn receive(&mut self, buffers: &mut Buffers, message_len: usize) -> io::Result<Option<usize>> {
        match self.stream.read(&mut buffers.incoming) {
            Ok(0) => Ok(None),
            Ok(n) => {
                self.begun += n;
                let complete = self.begun / message_len;
                self.begun %= message_len;
                Ok(Some(complete))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Some(0)),
            // Whoever measures for a time hangs up with answers on their way.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes what is owed, as far as the socket takes it.
    fn send(&mut self, buffers: &Buffers) -> io::Result<()> {
        while self.owed > 0 {
            let len = self.owed.min(buffers.outgoing.len());
            match self.stream.write(&buffers.outgoing[..len]) {
                Ok(n) => self.owed -= n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if is_hang_up(&error) => self.owed = 0, // the next read tells
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn is_hang_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

/// Which connections to look at.
struct Ready {
    /// None: all of them, all the time.
    epoll: Option<OwnedFd>,
    open: Vec<usize>,
    events: Vec<libc::epoll_event>,
}

impl Ready {
    fn new(ends: &[End], spin: bool) -> io::Result<Self> {
        let epoll = if spin { None } else { Some(epoll_create()?) };
        let events = vec![libc::epoll_event { events: 0, u64: 0 }; ends.len()];
        let ready = Self { epoll, open: (0..ends.len()).collect(), events };
        for (index, end) in ends.iter().enumerate() {
            ready.control(libc::EPOLL_CTL_ADD, index, end)?;
        }
        Ok(ready)
    }

    fn wait(&mut self) -> io::Result<Vec<usize>> {
        let Some(epoll) = &self.epoll else { return Ok(self.open.clone()) };
        let len = self.events.len() as libc::c_int;
        // SAFETY: the descriptor is open, and there is room for so many events.
        let n = unsafe { libc::epoll_wait(epoll.as_raw_fd(), self.events.as_mut_ptr(), len, -1) };
        if n < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(self.events[..n as usize].iter().map(|event| event.u64 as usize).collect())
    }

    /// Asks to be told of room in the socket while something waits for that.
    fn listen(&self, index: usize, end: &mut End) -> io::Result<()> {
        let waits = end.owed > 0;
        if std::mem::replace(&mut end.waits_to_send, waits) != waits {
            self.control(libc::EPOLL_CTL_MOD, index, end)?;
        }
        Ok(())
    }

    fn control(&self, operation: libc::c_int, index: usize, end: &End) -> io::Result<()> {
        let Some(epoll) = &self.epoll else { return Ok(()) };
        let events = libc::EPOLLIN | if end.waits_to_send { libc::EPOLLOUT } else { 0 };
        let mut event = libc::epoll_event { events: events as u32, u64: index as u64 };
        let (epoll, socket) = (epoll.as_raw_fd(), end.stream.as_raw_fd());
        // SAFETY: both descriptors are open; the kernel copies the event.
        match unsafe { libc::epoll_ctl(epoll, operation, socket, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The connection has ended.
    fn forget(&mut self, index: usize, end: &End) -> io::Result<()> {
        self.open.retain(|open| *open != index);
        self.control(libc::EPOLL_CTL_DEL, index, end)
    }
}

fn epoll_create() -> io::Result<OwnedFd> {
    // SAFETY: no pointer is passed.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if epoll < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(epoll) })
}

/// Processor time of this process, or of its children that have ended.
fn cpu_s(who: libc::c_int) -> io::Result<f64> {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: there is room for one rusage.
    if unsafe { libc::getrusage(who, usage.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: getrusage has filled it.
    let usage = unsafe { usage.assume_init() };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok(seconds(usage.ru_utime) + seconds(usage.ru_stime))
}
