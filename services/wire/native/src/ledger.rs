//! Where each part of an open layer call was sent last, and which are known not to arrive; as moe.wire.ledger.

use std::collections::HashMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Overloaded,
    Expired,
    NoCollector,
    Invalid,
    Draining,
    Failed,
    StreamLost,
    Unreachable,
    Refused,
}

impl Kind {
    /// As moe.wire.port.FailureKind names it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Overloaded => "overloaded",
            Kind::Expired => "expired",
            Kind::NoCollector => "no_collector",
            Kind::Invalid => "invalid",
            Kind::Draining => "draining",
            Kind::Failed => "failed",
            Kind::StreamLost => "stream_lost",
            Kind::Unreachable => "unreachable",
            Kind::Refused => "refused",
        }
    }
}

/// A part that has to be sent again or given up.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    pub part: u32,
    pub endpoint: String,
    pub kind: Kind,
    pub message: String,
    pub retry_after_s: f64,
}

impl Failure {
    pub fn new(part: u32, endpoint: &str, kind: Kind, message: String) -> Self {
        Failure {
            part,
            endpoint: endpoint.to_string(),
            kind,
            message,
            retry_after_s: 0.0,
        }
    }
}

struct Sent {
    part: u32,
    endpoint: String,
    instance: Option<String>,
}

/// The sent parts of one layer call: few, so they are looked through.
#[derive(Default)]
pub struct Ledger {
    sent: Vec<Sent>,
    unanswered: HashMap<(u32, String), i32>,
}

impl Ledger {
    /// A part was handed to the stream of an endpoint; instance is None while that stream is being opened.
    pub fn sent(&mut self, part: u32, endpoint: &str, instance: Option<String>) {
        self.sent.retain(|sent| sent.part != part);
        self.sent.push(Sent {
            part,
            endpoint: endpoint.to_string(),
            instance,
        });
        *self
            .unanswered
            .entry((part, endpoint.to_string()))
            .or_default() += 1;
    }

    /// The stream to an endpoint opened: what waited for it goes to this process.
    pub fn opened(&mut self, endpoint: &str, instance: &str) {
        for sent in self
            .sent
            .iter_mut()
            .filter(|sent| sent.endpoint == endpoint && sent.instance.is_none())
        {
            sent.instance = Some(instance.to_string());
        }
    }

    /// A receipt came; returns the failure if it is about the part's last dispatch.
    pub fn receipt(
        &mut self,
        endpoint: &str,
        part: u32,
        failure: Option<Failure>,
    ) -> Option<Failure> {
        let left = self
            .unanswered
            .entry((part, endpoint.to_string()))
            .or_default();
        *left -= 1;
        let left = *left;
        let at = self
            .sent
            .iter()
            .position(|sent| sent.part == part && sent.endpoint == endpoint)?;
        let failure = failure.filter(|_| left <= 0)?;
        self.sent.swap_remove(at);
        Some(failure)
    }

    /// The Dispatch stream to an endpoint is gone: dispatches without a receipt are lost.
    pub fn stream_lost(&mut self, endpoint: &str, kind: Kind, message: &str) -> Vec<Failure> {
        let unanswered = &self.unanswered;
        let lost = |sent: &Sent| {
            sent.endpoint == endpoint
                && unanswered
                    .get(&(sent.part, endpoint.to_string()))
                    .is_some_and(|&n| n > 0)
        };
        let parts: Vec<u32> = self
            .sent
            .iter()
            .filter(|sent| lost(sent))
            .map(|sent| sent.part)
            .collect();
        self.unanswered.retain(|(_, at), _| at != endpoint);
        self.fail(&parts, kind, message)
    }

    /// The aggregator may have missed what this process pushed.
    pub fn source_lost(&mut self, instance: &str, message: &str) -> Vec<Failure> {
        let from = |sent: &&Sent| sent.instance.as_deref() == Some(instance);
        let parts: Vec<u32> = self
            .sent
            .iter()
            .filter(from)
            .map(|sent| sent.part)
            .collect();
        self.fail(&parts, Kind::StreamLost, message)
    }

    /// The combiner could not use the part that arrived.
    pub fn refused(&mut self, part: u32, reason: &str) -> Vec<Failure> {
        self.fail(&[part], Kind::Refused, reason)
    }

    fn fail(&mut self, parts: &[u32], kind: Kind, message: &str) -> Vec<Failure> {
        let mut failures = vec![];
        self.sent.retain(|sent| {
            let fails = parts.contains(&sent.part);
            if fails {
                failures.push(Failure::new(
                    sent.part,
                    &sent.endpoint,
                    kind,
                    message.to_string(),
                ));
            }
            !fails
        });
        failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_parts_last_dispatch_counts() {
        let mut ledger = Ledger::default();
        ledger.sent(0, "a", Some("x".into()));
        ledger.sent(0, "b", None);
        let failure = |endpoint: &str| Some(Failure::new(0, endpoint, Kind::Failed, String::new()));
        assert_eq!(ledger.receipt("a", 0, failure("a")), None);
        assert!(ledger.receipt("b", 0, failure("b")).is_some());
        assert_eq!(ledger.receipt("b", 0, failure("b")), None);
    }

    #[test]
    fn a_broken_stream_loses_what_has_no_receipt_and_a_lost_source_what_has() {
        let mut ledger = Ledger::default();
        ledger.sent(0, "a", None);
        ledger.sent(1, "a", None);
        ledger.opened("a", "x");
        ledger.receipt("a", 1, None);
        assert_eq!(
            ledger
                .stream_lost("a", Kind::StreamLost, "gone")
                .iter()
                .map(|f| f.part)
                .collect::<Vec<_>>(),
            [0]
        );
        assert_eq!(
            ledger
                .source_lost("x", "gone")
                .iter()
                .map(|f| f.part)
                .collect::<Vec<_>>(),
            [1]
        );
        assert!(ledger.refused(1, "late").is_empty());
    }
}
