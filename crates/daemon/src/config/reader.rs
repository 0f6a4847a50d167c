//! Reading TOML strictly: every key is asked for by name, what was not asked for is an error, and
//! all errors are collected, each with its line, key and what would be allowed. A table may be said
//! in parts, by several files; a key of it is said once.

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

/// Puts problems in the order in which their files are read (`main` first), then of their lines.
pub(crate) fn sort(problems: &mut [Problem], main: &Path) {
    let key = |problem: &Problem| (problem.file != main, problem.file.clone(), problem.line);
    problems.sort_by_cached_key(key);
}

impl Place {
    /// Line, from 1; 0 for the file as a whole.
    pub(crate) fn line(&self) -> usize {
        self.line
    }

    /// The file.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// Where it is, for people: `FILE:LINE`.
    pub(crate) fn at(&self) -> String {
        match self.line {
            0 => self.file.display().to_string(),
            line => format!("{}:{line}", self.file.display()),
        }
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

    /// All problems that were found so far, as they were.
    pub(crate) fn take_problems(&self) -> Vec<Problem> {
        self.problems.take()
    }
}

/// A table being read, of one file or of several.
pub(crate) struct Section<'r, 'de> {
    /// In the order of the files; never empty.
    parts: Vec<Part<'r, 'de>>,
    asked: Vec<&'static str>,
}

/// What one file says of a table.
struct Part<'r, 'de> {
    reader: &'r Reader,
    path: String,
    span: Span,
    table: Table<'de>,
}

/// A value that was taken out of a table.
struct Taken<'r, 'de> {
    reader: &'r Reader,
    place: Place,
    value: Value<'de>,
}

impl<'r, 'de> Part<'r, 'de> {
    fn place(&self) -> Place {
        self.reader.place(self.span, &self.path)
    }

    fn join(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn take(&mut self, key: &str) -> Option<Taken<'r, 'de>> {
        let value = self.table.remove(key)?;
        let place = self.reader.place(value.span, &self.join(key));
        Some(Taken { reader: self.reader, place, value })
    }
}

impl<'r, 'de> Taken<'r, 'de> {
    fn complain(&self, what: impl fmt::Display) {
        self.reader.complain(&self.place, what);
    }

    fn into_section(mut self) -> Option<Section<'r, 'de>> {
        let span = self.value.span;
        match self.value.take() {
            ValueInner::Table(table) => {
                Some(Section::new(self.reader, self.place.key, span, table))
            }
            other => {
                self.complain(wanted("a table", &other));
                None
            }
        }
    }
}

impl<'r, 'de> Section<'r, 'de> {
    pub(crate) fn new(reader: &'r Reader, path: String, span: Span, table: Table<'de>) -> Self {
        Self { parts: vec![Part { reader, path, span, table }], asked: Vec::new() }
    }

    /// Adds what a later file says of this table.
    pub(crate) fn merge(&mut self, later: Self) {
        self.parts.extend(later.parts);
    }

    /// This table with what a later file says of it besides.
    pub(crate) fn merged(mut self, later: Self) -> Self {
        self.merge(later);
        self
    }

    /// Does the file that `later` begins in say something of this table already? Files are read one
    /// after the other.
    pub(crate) fn ends_in_the_file_of(&self, later: &Self) -> bool {
        let (last, first) = (self.parts.last(), later.parts.first());
        last.zip(first).is_some_and(|(last, first)| std::ptr::eq(last.reader, first.reader))
    }

    /// The table as a whole.
    pub(crate) fn place(&self) -> Place {
        self.parts.first().map(Part::place).unwrap_or_default()
    }

    pub(crate) fn complain(&self, what: impl fmt::Display) {
        self.complain_at(&self.place(), what);
    }

    /// A key's value cannot be together with something else.
    pub(crate) fn complain_at(&self, place: &Place, what: impl fmt::Display) {
        if let Some(first) = self.parts.first() {
            first.reader.complain(place, what);
        }
    }

    /// Is the key there? It has not been asked for by that.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.parts.iter().any(|part| part.table.contains_key(key))
    }

    fn take_all(&mut self, key: &'static str) -> Vec<Taken<'r, 'de>> {
        self.asked.push(key);
        self.parts.iter_mut().filter_map(|part| part.take(key)).collect()
    }

    fn take(&mut self, key: &'static str) -> Option<Taken<'r, 'de>> {
        let mut all = self.take_all(key).into_iter();
        let first = all.next()?;
        for again in all {
            again.complain(format_args!("is said in {} already", first.place.at()));
        }
        Some(first)
    }

    /// The value of a key, read by `read`, and where it is.
    pub(crate) fn with<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(ValueInner<'de>) -> Result<T, String>,
    ) -> Option<(Place, T)> {
        let mut taken = self.take(key)?;
        match read(taken.value.take()) {
            Ok(value) => Some((taken.place, value)),
            Err(what) => {
                taken.complain(what);
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
        if !self.has(key) {
            self.asked.push(key);
            self.complain(format!("{key} is missing"));
            return None;
        }
        self.with(key, read)
    }

    /// A table of its own.
    pub(crate) fn section(&mut self, key: &'static str) -> Option<Section<'r, 'de>> {
        let tables = self.take_all(key).into_iter().filter_map(Taken::into_section);
        tables.reduce(Section::merged)
    }

    /// An array of tables; nothing if there is none. Those of later files follow.
    pub(crate) fn sections(&mut self, key: &'static str) -> Vec<Section<'r, 'de>> {
        let mut sections = Vec::new();
        for mut taken in self.take_all(key) {
            let values = match taken.value.take() {
                ValueInner::Array(values) => values,
                other => {
                    let array = format!("an array of tables ([[{}]])", taken.place.key);
                    taken.complain(wanted(&array, &other));
                    continue;
                }
            };
            for (index, value) in values.into_iter().enumerate() {
                let reader = taken.reader;
                let place = reader.place(value.span, &format!("{}[{index}]", taken.place.key));
                sections.extend(Taken { reader, place, value }.into_section());
            }
        }
        sections
    }

    /// Tables with names of the user's own: `[chap.NAME]`.
    pub(crate) fn named(mut self) -> Vec<(String, Section<'r, 'de>)> {
        let mut sections: Vec<(String, Section<'r, 'de>)> = Vec::new();
        for part in &mut self.parts {
            for (key, value) in std::mem::take(&mut part.table) {
                let place = part.reader.place(key.span, &part.join(&key.name));
                let taken = Taken { reader: part.reader, place, value };
                let Some(mut section) = taken.into_section() else { continue };
                if let [one] = &mut section.parts[..] {
                    one.span = key.span;
                }
                match sections.iter_mut().find(|(name, _)| *name == key.name) {
                    Some((_, known)) => known.merge(section),
                    None => sections.push((key.name.into_owned(), section)),
                }
            }
        }
        sections
    }

    /// Complains of every key that was not asked for.
    pub(crate) fn finish(self) {
        let mut allowed = self.asked.clone();
        allowed.sort_unstable();
        for part in &self.parts {
            for key in part.table.keys() {
                let place = part.reader.place(key.span, &part.join(&key.name));
                let what = match nearest(&key.name, &allowed) {
                    Some(meant) => format!("unknown key; did you mean {meant}?"),
                    None => format!("unknown key (allowed here: {})", allowed.join(", ")),
                };
                part.reader.complain(&place, what);
            }
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
