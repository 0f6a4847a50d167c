//! Which packets wait together at a line, and who of them goes first: classes by DSCP (RFC 2474),
//! in strict order of priority or with weights. What they do is [`crate::scheduler`]'s.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// As many as Ethernet has priorities (IEEE 802.1Q §6.9.3), so that no switch has more.
pub(crate) const CLASSES_MAX: usize = 8;

/// The largest part of a line beside the smallest one: at 1538 bytes for a weight of 1, so much
/// leaves at once in 12 ms of 1 Gbit/s.
const WEIGHT_MAX: u16 = 1000;

/// A DSCP has six bits.
const DSCP_MAX: u8 = 63;

/// The class that takes the packets whose mark nobody else named.
const REST: &str = "rest";

/// Expedited forwarding (RFC 3246), admitted voice (RFC 5865), lower effort (RFC 8622).
const NAMED: [(&str, u8); 3] = [("ef", 46), ("va", 44), ("le", 1)];

/// Who goes first where several classes have packets waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The class that was named first, always.
    Strict,
    /// All in turn, each with bytes by its weight: deficit round robin (Shreedhar and Varghese,
    /// SIGCOMM 1995).
    Weighted,
}

/// The classes of a line, one at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Classes {
    order: Order,
    count: usize,
    classes: [Class; CLASSES_MAX],
}

/// The packets of some marks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Class {
    /// A bit for each DSCP that was named; the bits of the class of the rest are all others.
    marks: u64,
    is_rest: bool,
    weight: u16,
}

impl Classes {
    /// `strict,CLASS,…` with the most urgent first, or `weighted,CLASS=WEIGHT,…`; a class is names
    /// or numbers of DSCPs joined by `+`, or `rest`: `strict,ef+cs5,rest,le`,
    /// `weighted,ef=4,rest=1`.
    ///
    /// # Errors
    /// When it is anything else, a mark is named twice, or nobody has the rest.
    pub fn parse(input: &str) -> Result<Self, ClassesError> {
        let mut words = input.split(',');
        let order = match words.next().unwrap_or_default() {
            "strict" => Order::Strict,
            "weighted" => Order::Weighted,
            _ => return Err(ClassesError::Form(input.to_owned())),
        };
        let mut all = Self { order, count: 0, classes: [Class::default(); CLASSES_MAX] };
        let mut named = 0_u64;
        for word in words {
            let class = Class::parse(word, order)?;
            let rest_is_taken = class.is_rest && all.used().iter().any(|class| class.is_rest);
            if rest_is_taken || class.marks & named != 0 {
                return Err(ClassesError::Twice(word.to_owned()));
            }
            named |= class.marks;
            *all.classes.get_mut(all.count).ok_or(ClassesError::Many)? = class;
            all.count += 1;
        }
        match all.classes[..all.count].iter_mut().find(|class| class.is_rest) {
            Some(rest) => rest.marks = !named,
            None => return Err(ClassesError::Rest(input.to_owned())),
        }
        Ok(all)
    }

    /// How one of several is chosen.
    #[must_use]
    pub fn order(&self) -> Order {
        self.order
    }

    /// The class of a packet with this DSCP.
    pub(crate) fn of(&self, dscp: u8) -> usize {
        let bit = 1_u64 << (dscp & DSCP_MAX);
        self.used().iter().position(|class| class.marks & bit != 0).unwrap_or_default()
    }

    /// The weight of each.
    pub(crate) fn weights(&self) -> impl Iterator<Item = u16> + '_ {
        self.used().iter().map(|class| class.weight)
    }

    /// What each is called.
    pub(crate) fn names(&self) -> Vec<String> {
        self.used().iter().map(Class::name).collect()
    }

    /// The part of the line that a class has at least while all have packets; all of it for the
    /// first of a strict order, as far as anybody can say for the others too.
    pub(crate) fn part(&self, class: usize) -> f64 {
        match (self.order, self.used().get(class)) {
            (Order::Weighted, Some(class)) => {
                f64::from(class.weight) / self.weights().map(f64::from).sum::<f64>()
            }
            _ => 1.0,
        }
    }

    fn used(&self) -> &[Class] {
        &self.classes[..self.count]
    }
}

impl Class {
    fn parse(word: &str, order: Order) -> Result<Self, ClassesError> {
        let (marks, weight) = match (order, word.split_once('=')) {
            (Order::Strict, None) => (word, 1),
            (Order::Weighted, Some((marks, weight))) => {
                let number = weight.parse().ok().filter(|n| (1..=WEIGHT_MAX).contains(n));
                (marks, number.ok_or_else(|| ClassesError::Weight(word.to_owned()))?)
            }
            (Order::Strict, Some(_)) => return Err(ClassesError::Weightless(word.to_owned())),
            (Order::Weighted, None) => return Err(ClassesError::Weight(word.to_owned())),
        };
        let mut class = Self { marks: 0, is_rest: marks == REST, weight };
        if class.is_rest {
            return Ok(class);
        }
        for mark in marks.split('+') {
            let dscp = dscp(mark).ok_or_else(|| ClassesError::Mark(mark.to_owned()))?;
            if class.marks & (1 << dscp) != 0 {
                return Err(ClassesError::Twice(mark.to_owned()));
            }
            class.marks |= 1 << dscp;
        }
        Ok(class)
    }

    fn name(&self) -> String {
        if self.is_rest {
            return REST.to_owned();
        }
        let marks = (0..=DSCP_MAX).filter(|dscp| self.marks & (1 << dscp) != 0);
        marks.map(dscp_name).collect::<Vec<_>>().join("+")
    }
}

/// As it is parsed.
impl fmt::Display for Classes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.order {
            Order::Strict => "strict",
            Order::Weighted => "weighted",
        })?;
        for class in self.used() {
            write!(f, ",{}", class.name())?;
            if self.order == Order::Weighted {
                write!(f, "={}", class.weight)?;
            }
        }
        Ok(())
    }
}

impl FromStr for Classes {
    type Err = ClassesError;

    fn from_str(input: &str) -> Result<Self, ClassesError> {
        Self::parse(input)
    }
}

impl From<Classes> for String {
    fn from(classes: Classes) -> Self {
        classes.to_string()
    }
}

impl TryFrom<String> for Classes {
    type Error = ClassesError;

    fn try_from(input: String) -> Result<Self, ClassesError> {
        Self::parse(&input)
    }
}

/// The number of `cs0` to `cs7` (RFC 2474), `af11` to `af43` (RFC 2597), the names above, or
/// itself.
fn dscp(name: &str) -> Option<u8> {
    if let Some((_, dscp)) = NAMED.iter().find(|(named, _)| *named == name) {
        return Some(*dscp);
    }
    if name.bytes().all(|byte| byte.is_ascii_digit()) {
        return name.parse().ok().filter(|dscp| *dscp <= DSCP_MAX);
    }
    (0..=DSCP_MAX).find(|dscp| standard_name(*dscp).as_deref() == Some(name))
}

fn dscp_name(dscp: u8) -> String {
    let named = NAMED.iter().find(|(_, known)| *known == dscp).map(|(name, _)| (*name).to_owned());
    named.or_else(|| standard_name(dscp)).unwrap_or_else(|| dscp.to_string())
}

/// Class selectors are `class << 3`, assured forwarding `class << 3 | precedence << 1`.
fn standard_name(dscp: u8) -> Option<String> {
    match (dscp >> 3, dscp & 7) {
        (class, 0) => Some(format!("cs{class}")),
        (class @ 1..=4, precedence @ (2 | 4 | 6)) => Some(format!("af{class}{}", precedence >> 1)),
        _ => None,
    }
}

/// Classes that could not be understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ClassesError {
    /// Neither strict nor weighted.
    #[error(
        "classes {0:?}: give fifo, strict,CLASS,… (the most urgent first) or weighted,CLASS=WEIGHT,…, \
         as in strict,ef,rest or weighted,ef=4,rest=1"
    )]
    Form(String),
    /// Not a mark.
    #[error(
        "class of {0:?}: a class is rest, or DSCPs joined by '+': cs0 to cs7, af11 to af43, ef, va, le \
         or a number from 0 to {DSCP_MAX}"
    )]
    Mark(String),
    /// A mark that stands in two classes.
    #[error("class of {0:?}: a mark is in one class only")]
    Twice(String),
    /// No weight, or none that can be.
    #[error("class {0:?}: its weight is a whole number from 1 to {WEIGHT_MAX}, as in ef=4")]
    Weight(String),
    /// A weight where there is an order.
    #[error("class {0:?}: classes in strict order have no weights")]
    Weightless(String),
    /// Nobody takes what is not named.
    #[error("classes {0:?}: one of them must be rest, for the marks that no other has")]
    Rest(String),
    /// Too many.
    #[error("there can be at most {CLASSES_MAX} classes")]
    Many,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_have_a_class_each() {
        let classes = Classes::parse("strict,ef+cs5,rest,le+cs1+2").unwrap();
        assert_eq!(classes.order(), Order::Strict);
        let of = |name: &str| classes.of(dscp(name).unwrap());
        assert_eq!((of("ef"), of("cs5"), of("cs0"), of("af41")), (0, 0, 1, 1));
        assert_eq!((of("le"), of("cs1"), of("2"), of("63")), (2, 2, 2, 1));
        assert_eq!(classes.names(), ["cs5+ef", "rest", "le+2+cs1"]);
        let weighted = Classes::parse("weighted,rest=3,ef=1").unwrap();
        assert_eq!((weighted.part(0), weighted.part(1)), (0.75, 0.25));
    }

    #[test]
    fn names_of_marks_are_those_of_the_rfcs() {
        for (name, number) in
            [("cs0", 0), ("le", 1), ("cs1", 8), ("af11", 10), ("af43", 38), ("va", 44), ("ef", 46)]
        {
            assert_eq!((dscp(name), dscp_name(number)), (Some(number), name.to_owned()));
        }
        for number in 0..=DSCP_MAX {
            assert_eq!(dscp(&dscp_name(number)), Some(number));
        }
        for bad in ["", "64", "-1", "+1", "cs8", "af14", "af51", "EF", "ef "] {
            assert_eq!(dscp(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        for text in ["strict,ef,rest", "weighted,ef=4,rest=2,le+cs1=1", "strict,rest"] {
            let classes = Classes::parse(text).unwrap();
            assert_eq!(classes.to_string(), text);
            let json = serde_json::to_string(&classes).unwrap();
            assert_eq!(serde_json::from_str::<Classes>(&json).unwrap(), classes);
        }
    }

    #[test]
    fn wrong_classes_are_named() {
        let message = |text: &str| Classes::parse(text).unwrap_err().to_string();
        assert!(message("ef,rest").contains("strict,CLASS"));
        assert!(message("strict,af14,rest").contains("\"af14\""));
        assert!(message("strict,ef").contains("must be rest"));
        assert!(message("strict").contains("must be rest"));
        assert!(message("strict,ef,46,rest").contains("one class only"));
        assert!(message("strict,ef+ef,rest").contains("one class only"));
        assert!(message("strict,rest,rest").contains("one class only"));
        assert!(message("strict,ef=1,rest").contains("no weights"));
        assert!(message("weighted,ef=0,rest=1").contains("1 to 1000"));
        assert!(message("weighted,ef,rest=1").contains("ef=4"));
        assert!(message("strict,0,1,2,3,4,5,6,7,rest").contains("at most 8"));
    }
}
