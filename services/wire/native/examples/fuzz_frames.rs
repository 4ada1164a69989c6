//! Mutates good inputs and has them read, for so many seconds: the fuzz target's harness where cargo-fuzz can't be had.
//!
//!     cargo run --release --example fuzz_frames -- SECONDS [FIRST_ROUND]
//!     cargo run --example fuzz_frames -- --seeds DIRECTORY
//!
//! Every round is a number from which its input follows, so a failure names the round that shows it again. The second form
//! writes the good inputs for cargo fuzz to begin with: those made by hand, and what real ends of the wire say to each
//! other.

#[path = "../fuzz/harness.rs"]
mod harness;
#[path = "../fuzz/recorded.rs"]
mod recorded;

use std::time::{Duration, Instant};

const MOST_MUTATIONS: usize = 8;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("--seeds") => {
            let place = std::path::Path::new(arguments.get(1).expect("a directory"));
            std::fs::create_dir_all(place).expect("a directory");
            write(place, "made", harness::seeds());
            write(place, "recorded", recorded::inputs());
        }
        seconds => {
            let seconds = seconds.map_or(Ok(10.0), str::parse).expect("seconds");
            let first = arguments
                .get(1)
                .map_or(Ok(0), |text| text.parse())
                .expect("a number");
            run(Duration::from_secs_f64(seconds), first);
        }
    }
}

/// Each has to pass the harness, as the fuzzer would find first of all.
fn write(place: &std::path::Path, name: &str, seeds: Vec<Vec<u8>>) {
    println!("{} seeds {name}", seeds.len());
    for (number, seed) in seeds.into_iter().enumerate() {
        harness::read(&seed);
        std::fs::write(place.join(format!("{name}-{number}")), seed).expect("a file");
    }
}

fn run(time: Duration, first: u64) {
    let (seeds, begun) = (harness::seeds(), Instant::now());
    let mut round = first;
    let hook = std::panic::take_hook();
    while begun.elapsed() < time {
        let input = mutated(&seeds, round);
        if std::panic::catch_unwind(|| harness::read(&input)).is_err() {
            std::panic::set_hook(hook);
            panic!("round {round} failed; input {input:?}");
        }
        round += 1;
    }
    println!("{} rounds from {first} on, clean", round - first);
}

fn mutated(seeds: &[Vec<u8>], round: u64) -> Vec<u8> {
    let mut dice = Dice(round.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut input = seeds[dice.below(seeds.len())].clone();
    for _ in 0..dice.below(MOST_MUTATIONS) {
        mutate(&mut input, seeds, &mut dice);
    }
    if dice.below(2) == 0 {
        mend_lengths(&mut input);
    }
    input
}

fn mutate(input: &mut Vec<u8>, seeds: &[Vec<u8>], dice: &mut Dice) {
    let at = dice.below(input.len().max(1));
    let interesting = [0, 1, 4, 0x7f, 0x80, 0xff];
    match dice.below(7) {
        _ if input.is_empty() => input.push(dice.below(256) as u8),
        0 => input[at] ^= 1 << dice.below(8),
        1 => input[at] = dice.below(256) as u8,
        2 => input[at] = interesting[dice.below(interesting.len())],
        3 => drop(input.remove(at)),
        4 => input.insert(at, interesting[dice.below(interesting.len())]),
        5 => input.truncate(at),
        _ => {
            let other = &seeds[dice.below(seeds.len())];
            let from = dice.below(other.len());
            let piece = &other[from..(from + dice.below(64)).min(other.len())];
            input.splice(at..at, piece.iter().copied());
        }
    }
}

/// Makes the first frame as long as the input, so that a mutation is not only a wrong length.
fn mend_lengths(input: &mut [u8]) {
    if input.len() >= 7 {
        let length = (input.len() - 7) as u32;
        input[2] = 0;
        input[3..7].copy_from_slice(&length.to_be_bytes());
    }
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}
