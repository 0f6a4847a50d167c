//! [`Dial`]: whoever makes the connections of a disk that is not simply dialled, such as one behind
//! a gateway that lets nobody in.

use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::pin::Pin;

use super::url::Portal;
use crate::transport::Stream;

/// A connection that is being made.
pub type Dialling<'a> = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send + 'a>>;

/// Makes connections: the first, those that are added while data flows, and all of them again after
/// a loss.
pub trait Dial: Debug + Send + Sync {
    /// A connection to a portal, nothing of iSCSI said yet. Who does not wait any more drops it.
    ///
    /// # Errors
    /// There is none now.
    fn dial<'a>(&'a self, portal: &'a Portal) -> Dialling<'a>;
}
