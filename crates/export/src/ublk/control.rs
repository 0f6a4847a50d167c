//! Commands to `/dev/ublk-control`: devices are made, started, taken over, stopped and removed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use super::sys::{self, ControlCommand, DeviceInfo, NO_QUEUE, Op, Parameters};

const PATH: &str = "/dev/ublk-control";

/// The driver's control device. A command may take as long as what it waits for: not for a thread
/// that others wait for.
pub(super) struct Control {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    file: File,
}

impl Control {
    /// # Errors
    /// One of the kind `NotFound` says that the kernel's module is not loaded.
    pub(super) fn open() -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(Path::new(PATH))?;
        Ok(Self { ring: IoUring::builder().build(1)?, file })
    }

    /// What the driver can (kernels from 6.5 on say so).
    pub(super) fn features(&mut self) -> io::Result<u64> {
        let mut features = 0_u64;
        self.with(Op::GET_FEATURES, 0, &mut features)?;
        Ok(features)
    }

    /// Makes a device, and returns its number.
    pub(super) fn add(&mut self, mark: u64) -> io::Result<u32> {
        let mut info = DeviceInfo {
            queues: 1,
            depth: sys::DEPTH,
            request_len_max: sys::REQUEST_LEN_MAX,
            device: sys::ANY_DEVICE,
            features: sys::FEATURES,
            mark,
            ..DeviceInfo::default()
        };
        self.with(Op::ADD_DEV, sys::ANY_DEVICE, &mut info)?;
        Ok(info.device)
    }

    pub(super) fn info(&mut self, device: u32) -> io::Result<DeviceInfo> {
        let mut info = DeviceInfo::default();
        self.with(Op::GET_DEV_INFO, device, &mut info)?;
        Ok(info)
    }

    pub(super) fn set_parameters(
        &mut self,
        device: u32,
        mut parameters: Parameters,
    ) -> io::Result<()> {
        parameters.len = size_of::<Parameters>() as u32;
        self.with(Op::SET_PARAMS, device, &mut parameters)
    }

    /// A command whose argument is a number, or none (0).
    pub(super) fn simple(&mut self, op: Op, device: u32, data: u64) -> io::Result<()> {
        self.run(op, ControlCommand { device, queue: NO_QUEUE, data, ..ControlCommand::default() })
    }

    /// A command that reads or writes `value`, which is plain data of the header's.
    fn with<T: Copy>(&mut self, op: Op, device: u32, value: &mut T) -> io::Result<()> {
        // The kernel has the address of this for as long as the command takes.
        let boxed = Box::into_raw(Box::new(*value));
        let command = ControlCommand {
            device,
            queue: NO_QUEUE,
            len: size_of::<T>() as u16,
            address: boxed as u64,
            ..ControlCommand::default()
        };
        let done = self.run(op, command);
        if done.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::Other) {
            return done; // it may be under way yet: what it writes to is never freed
        }
        #[allow(unsafe_code, reason = "the kernel writes to an address")]
        // SAFETY: the pointer is that of the box above, and the kernel has completed the command,
        // so nobody else has it.
        let boxed = unsafe { Box::from_raw(boxed) };
        *value = *boxed;
        done
    }

    /// Until it is completed.
    ///
    /// # Errors
    /// The driver's, with its number; of the kind `Other` if it is not known what became of it.
    fn run(&mut self, op: Op, command: ControlCommand) -> io::Result<()> {
        let file = types::Fd(self.file.as_raw_fd());
        let entry = opcode::UringCmd80::new(file, op.0).cmd(command.bytes()).build();
        #[allow(unsafe_code, reason = "io_uring's queue takes what it is given")]
        // SAFETY: the file is open as long as the ring is, and what the command points to is
        // valid until it is completed (`with`).
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(|_| io::ErrorKind::QuotaExceeded)?;
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(io::Error::other(error)),
            }
            if let Some(completed) = self.ring.completion().next() {
                return match completed.result() {
                    failed if failed < 0 => Err(io::Error::from_raw_os_error(-failed)),
                    _ => Ok(()),
                };
            }
        }
    }
}
