//! The socket with real clients.

use std::os::unix::fs::PermissionsExt;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::*;

/// Answers a pause; a verification goes on until it is dropped, and tells of that.
struct Scripted(UnboundedSender<&'static str>);

struct Tells(UnboundedSender<&'static str>);

impl Drop for Tells {
    fn drop(&mut self) {
        let _receiver_gone = self.0.send("dropped");
    }
}

impl Answers for Scripted {
    fn answer(&self, request: Request) -> Answering {
        let tell = self.0.clone();
        Box::pin(async move {
            match request {
                Request::Pause { leg } => match which_leg(leg.as_deref(), &["a".into()]) {
                    Ok(_) => Answer::ok(),
                    Err(error) => Answer::failed(error),
                },
                Request::Verify { .. } => {
                    let _tells = Tells(tell.clone());
                    let _receiver_gone = tell.send("begun");
                    std::future::pending().await
                }
                _ => Answer::failed("not here"),
            }
        })
    }
}

#[tokio::test]
async fn requests_are_answered_and_end_with_their_client() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("below/mirror.sock");
    let (tell, mut told) = unbounded_channel();
    let listener = listen(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    let serving = tokio::spawn(serve(Arc::new(Scripted(tell)), listener));
    let pause = |leg: Option<&str>| Request::Pause { leg: leg.map(str::to_owned) };
    assert!(ask(&path, &pause(None)).await.unwrap().ok);
    let refused = ask(&path, &pause(Some("2"))).await.unwrap();
    assert_eq!(
        (refused.ok, &refused.errors[..]),
        (false, &["there is no leg 2 (1 is a)".to_owned()][..])
    );

    let client = tokio::spawn({
        let path = path.clone();
        async move { ask(&path, &Request::Verify { leg: None, bytes_per_s: None, heal: false }).await }
    });
    assert_eq!(told.recv().await, Some("begun"));
    client.abort();
    assert_eq!(told.recv().await, Some("dropped"));

    let mut stream = UnixStream::connect(&path).await.unwrap();
    stream.write_all(b"{\"do\":\"fly\"}\n").await.unwrap();
    let mut line = String::new();
    BufReader::new(&mut stream).read_line(&mut line).await.unwrap();
    assert!(line.starts_with(r#"{"ok":false,"errors":["not a request: unknown variant"#), "{line}");
    serving.abort();
}

#[tokio::test]
async fn nobody_there_is_told_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let error = ask(&folder.path().join("none.sock"), &Request::Status).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
}

#[test]
fn legs_are_found_by_number_name_and_end_of_name() {
    let names = ["iscsi://far/iqn.x:a/0".to_owned(), "/mnt/a/0".to_owned()];
    assert_eq!(which_leg(Some("2"), &names), Ok(1));
    assert_eq!(which_leg(Some("/mnt/a/0"), &names), Ok(1));
    assert_eq!(which_leg(Some("iqn.x:a/0"), &names), Ok(0));
    let error = which_leg(Some("a/0"), &names).unwrap_err();
    assert!(error.contains("several names"), "{error}");
    for wrong in ["0", "3", "far"] {
        let error = which_leg(Some(wrong), &names).unwrap_err();
        assert!(error.contains("there is no leg") && error.contains("2 is /mnt/a/0"), "{error}");
    }
    let error = which_leg(None, &names).unwrap_err();
    assert!(error.starts_with("there are 2 legs; which one?"), "{error}");
    assert_eq!(which_leg(None, &names[..1]), Ok(0));
}
