//! `list` of whatever a daemon serves, as a table or as JSON.

use std::process::ExitCode;

use daemon::admin::{Answer, Request};
use serde::Serialize;

use super::{SocketArgs, complain, say, talk};

#[derive(clap::Args, Debug)]
pub(super) struct ListArgs {
    #[command(flatten)]
    socket: SocketArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Asks for what `of` takes from the answer, and prints it; `lines` makes the table.
pub(super) async fn list<T: Serialize>(
    args: ListArgs,
    request: Request,
    of: impl FnOnce(&mut Answer) -> Option<Vec<T>>,
    lines: impl FnOnce(&[T]) -> String,
) -> anyhow::Result<ExitCode> {
    let mut answer = talk(&args.socket.socket, request).await?;
    let Some(found) = of(&mut answer).filter(|_| answer.ok) else {
        return Ok(complain(answer.errors));
    };
    match args.json {
        true => say(serde_json::to_string_pretty(&found)?)?,
        false => say(lines(&found))?,
    }
    Ok(ExitCode::SUCCESS)
}
