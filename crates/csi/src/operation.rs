//! Operations: one at a time for each volume, and carried out to their end.
//!
//! Who asks may give up (a deadline of gRPC) and ask again. What was begun goes on all the same:
//! half an mkfs is worse than a late answer. Until it has ended, the same is answered `ABORTED`,
//! as the specification wants.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use tonic::{Response, Status};

/// Longest id, name or path that is taken, in bytes: far above those of the specification (128, and
/// 4 KiB of a path).
const TEXT_LEN_MAX: usize = 4096;

/// What is being worked on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Busy(Arc<Mutex<HashSet<String>>>);

impl Busy {
    /// Nobody else works on it as long as the value lives.
    fn begin(&self, id: &str) -> Result<Working, Status> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.insert(id.to_owned()) {
            return Err(Status::aborted(format!("{id}: another operation on it is under way")));
        }
        Ok(Working { busy: self.clone(), id: id.to_owned() })
    }

    /// Carries something out with what a service has, alone on `id`, whether or not anybody still
    /// waits for it.
    pub(crate) async fn carry_out<S, T, F>(
        &self,
        service: &Arc<S>,
        id: &str,
        operation: impl FnOnce(Arc<S>) -> F,
    ) -> Result<Response<T>, Status>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Status>> + Send + 'static,
    {
        let operation = operation(Arc::clone(service));
        let working = self.begin(id)?;
        let task = tokio::spawn(async move {
            let result = operation.await;
            drop(working);
            result
        });
        let ended = task.await.map_err(|error| Status::internal(error.to_string()))?;
        ended.map(Response::new)
    }
}

struct Working {
    busy: Busy,
    id: String,
}

impl Drop for Working {
    fn drop(&mut self) {
        self.busy.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

/// A field that has to be there.
pub(crate) fn required(what: &str, text: String) -> Result<String, Status> {
    match text.len() {
        0 => Err(Status::invalid_argument(format!("{what} is missing"))),
        len if len > TEXT_LEN_MAX => Err(Status::invalid_argument(format!(
            "{what} has {len} bytes, at most {TEXT_LEN_MAX} are allowed"
        ))),
        _ => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn what_was_begun_ends_although_nobody_waits_and_nothing_else_begins_before() {
        let (busy, service) = (Busy::default(), Arc::new(()));
        let (go, gone) = oneshot::channel::<()>();
        let (done, was_done) = oneshot::channel();
        let operation = async move {
            let _ = gone.await;
            let _ = done.send(());
            Ok(())
        };
        let waiting = busy.carry_out(&service, "a", |_| operation);
        assert!(tokio::time::timeout(Duration::from_millis(10), waiting).await.is_err());
        let again = busy.carry_out(&service, "a", |_| async { Ok(()) }).await;
        assert_eq!(again.unwrap_err().code(), tonic::Code::Aborted);
        assert!(busy.carry_out(&service, "b", |_| async { Ok(()) }).await.is_ok());
        go.send(()).unwrap();
        was_done.await.unwrap();
        while busy.carry_out(&service, "a", |_| async { Ok(()) }).await.is_err() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_panic_lets_others_work() {
        let (busy, service) = (Busy::default(), Arc::new(()));
        let panics = async { if true { panic!("on purpose") } else { Ok(()) } };
        assert_eq!(
            busy.carry_out(&service, "a", |_| panics).await.unwrap_err().code(),
            tonic::Code::Internal
        );
        assert!(busy.carry_out(&service, "a", |_| async { Ok(()) }).await.is_ok());
    }

    #[test]
    fn a_field_that_is_missing_is_named() {
        assert!(required("name", String::new()).unwrap_err().message().contains("name"));
        assert!(required("name", "x".repeat(TEXT_LEN_MAX + 1)).is_err());
        assert_eq!(required("name", "x".to_owned()).unwrap(), "x");
    }
}
