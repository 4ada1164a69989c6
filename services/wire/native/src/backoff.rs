//! How long to wait before dialling again; as moe.wire.backoff.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(20);
const MOST: Duration = Duration::from_millis(500);
/// A stream that was open so long was a success: the waits start over.
const SETTLED: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The wait after an attempt whose stream was open for `lasted` (zero when it never opened).
    pub fn next_wait(&mut self, lasted: Duration) -> Duration {
        if lasted >= SETTLED {
            self.failures = 0;
        }
        let wait = FIRST.saturating_mul(1 << self.failures.min(16)).min(MOST);
        self.failures = (self.failures + 1).min(16);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_bound_and_start_over_after_a_stream_that_lasted() {
        let mut backoff = Backoff::default();
        let waits: Vec<u128> = (0..7)
            .map(|_| backoff.next_wait(Duration::ZERO).as_millis())
            .collect();
        assert_eq!(waits, [20, 40, 80, 160, 320, 500, 500]);
        assert_eq!(backoff.next_wait(Duration::from_millis(999)), MOST);
        assert_eq!(backoff.next_wait(SETTLED), FIRST);
    }
}
