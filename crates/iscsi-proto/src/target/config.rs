//! What a target session may use, and how long it waits.

use std::time::Duration;

/// Limits and timers of a session. The defaults suit 1 Gbit/s over 200 ms: 25 MB under way.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionConfig {
    /// Commands accepted beyond those answered (MaxCmdSN − ExpCmdSN + 1 when idle). Sized never to
    /// be the limit: 4,096 of 4 KiB fill 140 ms at 1 Gbit/s. What they need of memory is limited
    /// apart from it.
    pub command_window: u32,
    /// Immediate commands under way at once; more are rejected (§4.2.2.1 asks for at least one).
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
    //# An iSCSI target MUST be able to handle at least one immediate task management command and
    //# one immediate non-task-management iSCSI command per connection at any time.
    pub immediate_commands_max: u32,
    /// Largest expected data transfer length of a write in bytes. A longer command is answered
    /// with an error instead of being given a buffer.
    pub write_length_max: u32,
    /// Memory for solicited writes in bytes, from the first R2T (or from the command, if data comes
    /// with it and there is room) to the end of the command, over all tasks of the session.
    /// Unsolicited data comes on top, at most FirstBurstLength times
    /// `command_window`.
    pub buffered_bytes_max: u64,
    /// Memory for what reads bring, from their execution until it is sent, over all tasks of a
    /// connection: a path that has died holds up no other. A read that finds it used up waits; one
    /// alone may be longer.
    pub read_bytes_max: u64,
    /// Answers that may be unacknowledged on a connection before SCSI responses are held back, at
    /// error recovery level 1 and up. Their read data counts towards `read_bytes_max`.
    pub unacknowledged_max: usize,
    /// Silence of a connection after which Data-Out that was asked for is taken as lost, at error
    /// recovery level 1 and up. TCP loses nothing, so that this is no matter of the path's quality:
    /// the time must only be longer than any initiator hesitates.
    pub data_timeout: Duration,
    /// Silence of a connection after which tasks that are aborted wait no longer for data they
    /// asked for. The RFC knows no such limit, but initiators that stop sending with the reset are
    /// the rule (Linux, unless told otherwise) and give up after half a minute.
    pub drain_timeout: Duration,
    /// Time after which an initiator is asked again to acknowledge what holds up others.
    pub acknowledge_after: Duration,
    /// Text of one request, over all its PDUs, in bytes.
    pub text_length_max: usize,
    /// Silence after which the target asks with a NOP-In whether the initiator is there.
    pub ping_after: Duration,
    /// Silence after such a NOP-In that ends the connection.
    pub ping_timeout: Duration,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            command_window: 4096,
            immediate_commands_max: 32,
            write_length_max: 32 << 20,
            buffered_bytes_max: 256 << 20,
            // 1 Gbit/s × 300 ms fits, and disks read ahead of the network by as much again.
            read_bytes_max: 64 << 20,
            // Twice the command window: it never binds while the initiator acknowledges at all.
            unacknowledged_max: 8192,
            data_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(3),
            acknowledge_after: Duration::from_secs(1),
            text_length_max: 64 << 10,
            ping_after: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(60),
        }
    }
}
