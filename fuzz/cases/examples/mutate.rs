//! Hostile input without libFuzzer: `cargo run -p fuzz-cases --example mutate -- CASE SECONDS
//! [SEED]` changes seeds and corpus at random. It knows nothing of coverage; for cases that damage
//! a good image themselves that is enough to begin with. An input that breaks an invariant is
//! printed.

use std::panic;
use std::path::Path;
use std::time::{Duration, Instant};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % limit.max(1) as u64) as usize
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        const EDGES: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];
        for _ in 0..=self.below(6) {
            let at = self.below(input.len() + 1);
            match self.below(6) {
                0 => input.insert(at, self.below(256) as u8),
                1 => input.truncate(at.max(1)),
                2 => {
                    let bytes: Vec<u8> =
                        (0..self.below(40)).map(|_| self.below(256) as u8).collect();
                    input.splice(at..at, bytes);
                }
                3 => {
                    let edge = EDGES[self.below(6)];
                    input.iter_mut().skip(at).take(8).for_each(|byte| *byte = edge);
                }
                _ => {
                    input.iter_mut().skip(at).take(1).for_each(|byte| *byte = self.below(256) as u8)
                }
            }
        }
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let case =
        words.first().and_then(|name| fuzz_cases::CASES.iter().find(|(known, _)| known == name));
    let seconds = words.get(1).and_then(|text| text.parse().ok());
    let (Some((name, case)), Some(seconds)) = (case, seconds) else {
        eprintln!("mutate CASE SECONDS [SEED]");
        std::process::exit(2);
    };
    let mut random = Random(words.get(2).and_then(|text| text.parse().ok()).unwrap_or(1));
    let mut inputs: Vec<Vec<u8>> =
        fuzz_cases::seeds(name).into_iter().map(|(_, input)| input).collect();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus").join(name);
    let files = std::fs::read_dir(corpus).into_iter().flatten().filter_map(Result::ok);
    inputs.extend(files.filter_map(|file| std::fs::read(file.path()).ok()));
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut runs: u64 = 0;
    while Instant::now() < until {
        let mut input = inputs[random.below(inputs.len())].clone();
        random.change(&mut input);
        if panic::catch_unwind(|| case(&input)).is_err() {
            eprintln!("after {runs} runs, input: {input:?}");
            std::process::exit(1);
        }
        runs += 1;
    }
    println!("{name}: {runs} inputs");
}
