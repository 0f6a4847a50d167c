//! Reading TOML strictly: every key is asked for by name, what was not asked for is an error, and
//! all errors are collected, each with its line, key and what would be allowed.

use std::cell::RefCell;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use iscsi::transport::Dscp;
use toml_span::value::{Table, ValueInner};
use toml_span::{Span, Value};
use wanlab::units;

/// Something wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub file: PathBuf,
    /// Line, from 1; 0 for the file as a whole.
    pub line: usize,
    /// The key, with the tables it is in: `target[0].lun[1].path`.
    pub key: String,
    /// What is wrong, and what would be allowed.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": {}", self.what)
    }
}

/// A place in the file, for errors that show up later.
#[derive(Clone, Debug, Default)]
pub struct Place {
    file: PathBuf,
    line: usize,
    key: String,
}

impl Place {
    /// Line, from 1; 0 for the file as a whole.
    pub(crate) fn line(&self) -> usize {
        self.line
    }

    /// What is wrong there.
    pub fn problem(&self, what: impl fmt::Display) -> Problem {
        let Self { file, line, key } = self.clone();
        Problem { file, line, key, what: what.to_string() }
    }
}

impl Place {
    /// A key that is not in the file, or the file as a whole.
    pub(crate) fn of_file(file: &Path, key: &str) -> Self {
        Self { file: file.to_owned(), line: 0, key: key.to_owned() }
    }
}

/// Two values are the same wherever they are written.
impl PartialEq for Place {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Place {}

/// A file being read.
pub(crate) struct Reader {
    file: PathBuf,
    /// Where each line begins.
    lines: Vec<usize>,
    problems: RefCell<Vec<Problem>>,
}

impl Reader {
    pub(crate) fn new(file: &Path, text: &str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let lines = std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect();
        Self { file: file.to_owned(), lines, problems: RefCell::default() }
    }

    pub(crate) fn place(&self, span: Span, key: &str) -> Place {
        let line = self.lines.partition_point(|start| *start <= span.start);
        Place { file: self.file.clone(), line, key: key.to_owned() }
    }

    /// A key that is not there, or not yet.
    pub(crate) fn missing(&self, key: &str) -> Place {
        Place::of_file(&self.file, key)
    }

    pub(crate) fn complain(&self, place: &Place, what: impl fmt::Display) {
        self.problems.borrow_mut().push(place.problem(what));
    }

    /// All problems, in the order of their lines.
    pub(crate) fn into_problems(self) -> Vec<Problem> {
        let mut problems = self.problems.into_inner();
        problems.sort_by_key(|problem| problem.line);
        problems
    }
}

/// A table being read.
pub(crate) struct Section<'r, 'de> {
    reader: &'r Reader,
    path: String,
    span: Span,
    table: Table<'de>,
    asked: Vec<&'static str>,
}

impl<'r, 'de> Section<'r, 'de> {
    pub(crate) fn new(reader: &'r Reader, path: String, span: Span, table: Table<'de>) -> Self {
        Self { reader, path, span, table, asked: Vec::new() }
    }

    /// The table as a whole.
    pub(crate) fn place(&self) -> Place {
        self.reader.place(self.span, &self.path)
    }

    pub(crate) fn complain(&self, what: impl fmt::Display) {
        self.reader.complain(&self.place(), what);
    }

    /// A key's value cannot be together with something else.
    pub(crate) fn complain_at(&self, place: &Place, what: impl fmt::Display) {
        self.reader.complain(place, what);
    }

    /// Is the key there? It has not been asked for by that.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    fn join(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn take(&mut self, key: &'static str) -> Option<(Place, Value<'de>)> {
        self.asked.push(key);
        let value = self.table.remove(key)?;
        Some((self.reader.place(value.span, &self.join(key)), value))
    }

    /// The value of a key, read by `read`, and where it is.
    pub(crate) fn with<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(ValueInner<'de>) -> Result<T, String>,
    ) -> Option<(Place, T)> {
        let (place, mut value) = self.take(key)?;
        match read(value.take()) {
            Ok(value) => Some((place, value)),
            Err(what) => {
                self.reader.complain(&place, what);
                None
            }
        }
    }

    pub(crate) fn get<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(ValueInner<'de>) -> Result<T, String>,
    ) -> Option<T> {
        self.with(key, read).map(|(_, value)| value)
    }

    /// As [`with`](Self::with), for a key that has to be there.
    pub(crate) fn required<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(ValueInner<'de>) -> Result<T, String>,
    ) -> Option<(Place, T)> {
        if !self.table.contains_key(key) {
            self.asked.push(key);
            self.complain(format!("{key} is missing"));
            return None;
        }
        self.with(key, read)
    }

    /// A table of its own.
    pub(crate) fn section(&mut self, key: &'static str) -> Option<Section<'r, 'de>> {
        let (place, mut value) = self.take(key)?;
        let span = value.span;
        match value.take() {
            ValueInner::Table(table) => Some(Section::new(self.reader, place.key, span, table)),
            other => {
                self.reader.complain(&place, wanted("a table", &other));
                None
            }
        }
    }

    /// An array of tables; nothing if there is none.
    pub(crate) fn sections(&mut self, key: &'static str) -> Vec<Section<'r, 'de>> {
        let Some((place, mut value)) = self.take(key) else { return Vec::new() };
        let values = match value.take() {
            ValueInner::Array(values) => values,
            other => {
                let what = wanted(&format!("an array of tables ([[{}]])", place.key), &other);
                self.reader.complain(&place, what);
                return Vec::new();
            }
        };
        let mut sections = Vec::new();
        for (index, mut value) in values.into_iter().enumerate() {
            let (path, span) = (format!("{}[{index}]", place.key), value.span);
            match value.take() {
                ValueInner::Table(table) => {
                    sections.push(Section::new(self.reader, path, span, table));
                }
                other => {
                    self.reader
                        .complain(&self.reader.place(span, &path), wanted("a table", &other));
                }
            }
        }
        sections
    }

    /// Tables with names of the user's own: `[chap.NAME]`.
    pub(crate) fn named(mut self) -> Vec<(String, Section<'r, 'de>)> {
        let mut sections = Vec::new();
        for (key, mut value) in std::mem::take(&mut self.table) {
            let (path, span) = (self.join(&key.name), key.span);
            match value.take() {
                ValueInner::Table(table) => {
                    let section = Section::new(self.reader, path, span, table);
                    sections.push((key.name.into_owned(), section));
                }
                other => {
                    self.reader
                        .complain(&self.reader.place(span, &path), wanted("a table", &other));
                }
            }
        }
        sections
    }

    /// Complains of every key that was not asked for.
    pub(crate) fn finish(self) {
        let mut allowed = self.asked.clone();
        allowed.sort_unstable();
        for key in self.table.keys() {
            let place = self.reader.place(key.span, &self.join(&key.name));
            let what = match nearest(&key.name, &allowed) {
                Some(meant) => format!("unknown key; did you mean {meant}?"),
                None => format!("unknown key (allowed here: {})", allowed.join(", ")),
            };
            self.reader.complain(&place, what);
        }
    }
}

/// The word that was perhaps meant: one or two letters away, or begun like this.
fn nearest<'w>(word: &str, words: &[&'w str]) -> Option<&'w str> {
    let begins = |other: &&&str| word.len() >= 4 && other.starts_with(word);
    let distances = words.iter().map(|other| (distance(word, other), other));
    let close = distances.filter(|(distance, _)| *distance <= 2 && *distance < word.len() / 2);
    words.iter().find(begins).or_else(|| close.min().map(|(_, other)| other)).copied()
}

/// Letters to change, put in, leave out or swap with their neighbour, to make one word of the
/// other.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows = vec![(0..=other.len()).collect::<Vec<usize>>()];
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in other.iter().enumerate() {
            let changed = rows[i][j] + usize::from(a != b);
            let mut least = changed.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == other[j - 1] && one[i - 1] == *b {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

fn wanted(what: &str, found: &ValueInner<'_>) -> String {
    format!("is {}, not {what}", found.type_str())
}

pub(crate) fn string(value: ValueInner<'_>) -> Result<String, String> {
    match value {
        ValueInner::String(text) if !text.is_empty() => Ok(text.into_owned()),
        ValueInner::String(_) => Err("is empty".into()),
        other => Err(wanted("a string", &other)),
    }
}

pub(crate) fn boolean(value: ValueInner<'_>) -> Result<bool, String> {
    match value {
        ValueInner::Boolean(value) => Ok(value),
        other => Err(wanted("true or false", &other)),
    }
}

/// How packets are marked: a name, or a number.
pub(crate) fn dscp(value: ValueInner<'_>) -> Result<Dscp, String> {
    match value {
        ValueInner::Integer(number) => number.to_string().parse(),
        value => string(value)?.parse(),
    }
}

/// A whole number from `min` to `max`.
pub(crate) fn number(min: u64, max: u64) -> impl FnOnce(ValueInner<'_>) -> Result<u64, String> {
    move |value| match value {
        ValueInner::Integer(number) => match u64::try_from(number) {
            Ok(number) if (min..=max).contains(&number) => Ok(number),
            _ => Err(format!("{number} is not allowed (a number from {min} to {max} is)")),
        },
        other => Err(wanted(&format!("a number from {min} to {max}"), &other)),
    }
}

/// Bytes: `"64k"`, `"2G"` or a plain number, from `min` to `max`.
pub(crate) fn size(min: u64, max: u64) -> impl FnOnce(ValueInner<'_>) -> Result<u64, String> {
    move |value| {
        let bytes = match value {
            ValueInner::Integer(number) => {
                u64::try_from(number).map_err(|_| format!("{number} is negative"))?
            }
            ValueInner::String(text) => {
                units::parse_size(&text).map_err(|error| error.to_string())?
            }
            other => return Err(wanted("a size, as in \"64k\" or \"2G\"", &other)),
        };
        if (min..=max).contains(&bytes) {
            return Ok(bytes);
        }
        Err(format!("{bytes} bytes are not allowed ({min} to {max} are)"))
    }
}

/// A time: `"20ms"`, up to `max`.
pub(crate) fn time(max: Duration) -> impl FnOnce(ValueInner<'_>) -> Result<Duration, String> {
    move |value| match value {
        ValueInner::String(text) => {
            let time = units::parse_time(&text).map_err(|error| error.to_string())?;
            let allowed = !time.is_zero() && time <= max;
            allowed
                .then_some(time)
                .ok_or_else(|| format!("{text:?} is not allowed (above 0, up to {max:?} is)"))
        }
        other => Err(wanted("a time, as in \"20ms\"", &other)),
    }
}

/// One of some words.
pub(crate) fn one_of<T: Copy>(
    words: &'static [(&'static str, T)],
) -> impl FnOnce(ValueInner<'_>) -> Result<T, String> {
    move |value| {
        let text = string(value)?;
        let found = words.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let allowed: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            format!("{text:?} is not known (allowed: {})", allowed.join(", "))
        })
    }
}

/// What `parse` makes of a string.
pub(crate) fn parsed<T>(
    what: &'static str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> impl FnOnce(ValueInner<'_>) -> Result<T, String> {
    move |value| {
        let text = string(value)?;
        parse(&text).ok_or_else(|| format!("{text:?} is not {what}"))
    }
}

/// An array, each element read by `read`.
pub(crate) fn list<T>(
    mut read: impl FnMut(ValueInner<'_>) -> Result<T, String>,
) -> impl FnOnce(ValueInner<'_>) -> Result<Vec<T>, String> {
    move |value| match value {
        ValueInner::Array(values) => {
            values.into_iter().map(|mut value| read(value.take())).collect()
        }
        other => Err(wanted("an array", &other)),
    }
}
