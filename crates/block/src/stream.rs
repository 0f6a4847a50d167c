//! Copies between a device and a byte stream (a pipe, a file of any length), in order and
//! pipelined: `depth` transfers are under way while the stream is read or written.

use std::collections::VecDeque;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::{JoinHandle, JoinSet};

use crate::copy::CopyError;
use crate::{BlockError, Buf, Device, WriteFlags};

/// How to copy to or from a stream.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// Bytes per transfer, a multiple of the device's block size.
    pub transfer_size: u32,
    /// Transfers under way at once.
    pub depth: usize,
}

/// Writes all of `input` to the start of `device` and flushes it. If the input ends inside a
/// block, the rest of that block is zero.
///
/// Returns the bytes read from `input`.
///
/// # Errors
/// What went wrong first; an input longer than the device is [`BlockError::OutOfRange`].
pub async fn copy_in(
    mut input: impl AsyncRead + Unpin,
    device: &Device,
    options: &StreamOptions,
    mut progress: impl FnMut(u64),
) -> Result<u64, CopyError> {
    let info = device.info();
    let mut writes: JoinSet<Result<u64, CopyError>> = JoinSet::new();
    let mut offset = 0;
    loop {
        let (buf, len) = read_block(&mut input, options, info.block_size, offset).await?;
        if len == 0 {
            break;
        }
        let fail = move |source| CopyError::Write { offset, source };
        let stored = buf.len() as u64;
        info.check(offset, stored).map_err(fail)?;
        while writes.len() >= options.depth.max(1) {
            if let Some(done) = writes.join_next().await {
                progress(done??);
            }
        }
        let device = device.clone();
        writes.spawn(async move {
            device.write(offset, buf.freeze(), WriteFlags::NONE).await.map_err(fail)?;
            Ok(len)
        });
        offset += len;
        if len < stored {
            break; // the end of the input lies inside this block
        }
    }
    while let Some(done) = writes.join_next().await {
        progress(done??);
    }
    device.flush().await.map_err(CopyError::Flush)?;
    Ok(offset)
}

/// Reads up to one transfer; returns the buffer, padded to whole blocks, and the bytes read.
async fn read_block(
    input: &mut (impl AsyncRead + Unpin),
    options: &StreamOptions,
    block_size: u32,
    offset: u64,
) -> Result<(Buf, u64), CopyError> {
    let mut buf = Buf::new(options.transfer_size as usize);
    let mut len = 0;
    while len < buf.len() {
        let read = input.read(&mut buf[len..]).await;
        let fail = |error| CopyError::Read { offset, source: BlockError::Medium(error) };
        match read.map_err(fail)? {
            0 => break,
            n => len += n,
        }
    }
    let padded = len.next_multiple_of(block_size as usize);
    buf[len..padded].fill(0);
    buf.truncate(padded);
    Ok((buf, len as u64))
}

/// Reads `length` bytes from the start of `device` and writes them to `output` in order.
///
/// # Errors
/// What went wrong first.
pub async fn copy_out(
    device: &Device,
    length: u64,
    mut output: impl AsyncWrite + Unpin,
    options: &StreamOptions,
    mut progress: impl FnMut(u64),
) -> Result<(), CopyError> {
    let mut reads = VecDeque::new();
    let mut next = 0;
    let mut written = 0;
    while written < length {
        while next < length && reads.len() < options.depth.max(1) {
            let len = u64::from(options.transfer_size).min(length - next);
            reads.push_back(spawn_read(device, next, len));
            next += len;
        }
        let Some(read) = reads.pop_front() else { break };
        let buf = read.await.map_err(CopyError::Lost)?;
        let buf = buf.map_err(|source| CopyError::Read { offset: written, source })?;
        let fail = |error| CopyError::Write { offset: written, source: BlockError::Medium(error) };
        output.write_all(&buf).await.map_err(fail)?;
        written += buf.len() as u64;
        progress(buf.len() as u64);
    }
    let fail = |error| CopyError::Flush(BlockError::Medium(error));
    output.flush().await.map_err(fail)
}

fn spawn_read(device: &Device, offset: u64, len: u64) -> JoinHandle<crate::Result<Buf>> {
    let device = device.clone();
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    tokio::spawn(async move { device.read(offset, Buf::new(len)).await })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::backend::MemoryDevice;

    fn device(size: u64) -> Device {
        Arc::new(MemoryDevice::new(size, 512).unwrap())
    }

    fn data(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 % 251) as u8).collect()
    }

    const OPTIONS: StreamOptions = StreamOptions { transfer_size: 4096, depth: 3 };

    #[tokio::test]
    async fn a_stream_of_odd_length_comes_back_and_its_last_block_is_padded() {
        let device = device(64 << 10);
        let all = Buf::copy_from(&[0xff; 64 << 10]).freeze();
        device.write(0, all, WriteFlags::NONE).await.unwrap();
        let input = data(20_001);
        let mut moved = 0;
        let length = copy_in(&input[..], &device, &OPTIONS, |n| moved += n).await.unwrap();
        assert_eq!((length, moved), (20_001, 20_001));
        let mut output = Vec::new();
        copy_out(&device, 20_992, &mut output, &OPTIONS, |_| ()).await.unwrap();
        assert_eq!(output[..20_001], input[..]);
        assert!(output[20_001..20_480].iter().all(|byte| *byte == 0));
        assert!(output[20_480..].iter().all(|byte| *byte == 0xff));
    }

    #[tokio::test]
    async fn an_input_longer_than_the_device_is_an_error() {
        let input = data(8193);
        let error = copy_in(&input[..], &device(8192), &OPTIONS, |_| ()).await.unwrap_err();
        assert!(matches!(error, CopyError::Write { source: BlockError::OutOfRange { .. }, .. }));
    }

    #[tokio::test]
    async fn an_empty_input_writes_nothing() {
        assert_eq!(copy_in(&[][..], &device(8192), &OPTIONS, |_| ()).await.unwrap(), 0);
    }
}
