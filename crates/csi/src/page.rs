//! Lists in pages. A token is the id that the page before ended with: it holds whatever comes and
//! goes between two pages, also for another process.

use tonic::Status;

/// A page of what is sorted by its id, and the token of the next one, if there is one.
///
/// # Errors
/// `ABORTED` for a token that no page gave, `INVALID_ARGUMENT` for a negative number of entries.
pub(crate) fn page<T>(
    mut sorted: Vec<T>,
    id: impl Fn(&T) -> String,
    token: &str,
    is_id: impl Fn(&str) -> bool,
    entries_max: i32,
) -> Result<(Vec<T>, String), Status> {
    let entries_max = usize::try_from(entries_max)
        .map_err(|_| Status::invalid_argument(format!("max_entries: {entries_max} is negative")))?;
    if !token.is_empty() {
        if !is_id(token) {
            let what = format!("starting_token: {token:?} was given by no page");
            return Err(Status::aborted(what));
        }
        sorted.retain(|one| id(one).as_str() > token);
    }
    let mut next = String::new();
    if entries_max > 0 && sorted.len() > entries_max {
        sorted.truncate(entries_max);
        next = sorted.last().map(id).unwrap_or_default();
    }
    Ok((sorted, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(
        all: &[&'static str],
        token: &str,
        max: i32,
    ) -> Result<(Vec<&'static str>, String), Status> {
        page(all.to_vec(), |one| one.to_string(), token, |token| token.len() == 1, max)
    }

    #[test]
    fn pages_follow_each_other_although_things_come_and_go() {
        let (first, next) = of(&["a", "c", "e"], "", 2).unwrap();
        assert_eq!((first, next.as_str()), (vec!["a", "c"], "c"));
        // The last of the page is gone, and another one has come.
        let (second, next) = of(&["a", "d", "e"], "c", 2).unwrap();
        assert_eq!((second, next.as_str()), (vec!["d", "e"], ""));
        assert_eq!(of(&["a", "b"], "", 0).unwrap().0.len(), 2);
        assert_eq!(of(&["a"], "z", 1).unwrap(), (vec![], String::new()));
    }

    #[test]
    fn a_token_of_somebody_else_is_refused() {
        assert_eq!(of(&["a"], "invalid", 1).unwrap_err().code(), tonic::Code::Aborted);
        assert_eq!(of(&["a"], "", -1).unwrap_err().code(), tonic::Code::InvalidArgument);
    }
}
