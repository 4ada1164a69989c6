//! Lines for the log, kept until the interpreter fetches them: nothing here may wait for its lock.

use std::collections::VecDeque;
use std::sync::Mutex;

const MOST_LINES: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Debug,
    Info,
    Warning,
}

static LINES: Mutex<VecDeque<(Level, String)>> = Mutex::new(VecDeque::new());

/// Keeps a line; the oldest is dropped when nobody fetches them.
pub fn log(level: Level, line: String) {
    let mut lines = LINES.lock().unwrap();
    if lines.len() == MOST_LINES {
        lines.pop_front();
    }
    lines.push_back((level, line));
}

/// Whether lines wait.
pub fn waiting() -> bool {
    !LINES.lock().unwrap().is_empty()
}

/// Takes all lines.
pub fn take() -> Vec<(Level, String)> {
    LINES.lock().unwrap().drain(..).collect()
}
