//! What goes wrong on the way, and who is told: lost peers, full queues, late and malformed messages, drains.

mod support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use moe_wire_native::api::aggregator::{
    combine_request::Kind as Ask, combine_response::Kind as Answer, CombineRequest,
    CombineResponse, Hello, MissingPolicy,
};
use moe_wire_native::api::expert::{
    dispatch_response::Kind as Word, CollectRequest, CollectResponse, DispatchResponse, PartStatus,
    Receipt,
};
use moe_wire_native::driver::monotonic;
use moe_wire_native::ledger::Kind;
use moe_wire_native::link::connect;
use moe_wire_native::names::{COLLECT, COMBINE, DISPATCH};
use moe_wire_native::router::{Outcome, Router};
use prost::Message;
use support::raw::{block_on, Talk};
use support::*;
use tonic::Code;

/// The first exchange of a call whose parts all go to the first replica.
fn begin(
    router: &Router,
    call: &LayerCall,
    endpoints: &[Vec<String>],
    aggregator: Option<&str>,
    until: f64,
) -> Outcome {
    let send = |part: &support::Part| call.dispatch(part.part, &endpoints[part.part as usize][0]);
    let dispatches = call.parts.iter().map(send).collect();
    router.exchange(
        call.key,
        || call.plan(),
        dispatches,
        aggregator,
        call.deadline,
        until,
    )
}

fn only_failure(outcome: Outcome) -> moe_wire_native::ledger::Failure {
    match outcome {
        Outcome::Incomplete(failures) if failures.len() == 1 => {
            failures.into_iter().next().unwrap()
        }
        other => panic!("{other:?}"),
    }
}

/// Warms the streams up with a call of its own.
fn warm(router: &Router, endpoints: &[Vec<String>], aggregator: Option<&str>) {
    LayerCall::new(1, endpoints.len(), 10.0).run(router, endpoints, aggregator);
}

#[test]
fn an_expert_killed_in_mid_call_is_a_lost_stream_and_another_replica_answers() {
    let mut dying = Group::start(0, Way::Nothing);
    let alive = Group::start(0, Way::Interpreter);
    let endpoints = targets(&[&dying, &alive]);
    for place in 0..2 {
        let (_aggregator, at) = aggregator(&endpoints);
        let at = (place == 1).then_some(at);
        let router = router(&endpoints, at.as_slice());
        warm(&router, &alone(&[&alive]), at.as_deref());
        let call = LayerCall::new(3, 1, 20.0);
        let outcome = std::thread::scope(|scope| {
            let (router, call, at) = (&router, &call, &at);
            let endpoints = alone(&[&dying]);
            let waiting =
                scope.spawn(move || begin(router, call, &endpoints, at.as_deref(), call.deadline));
            wait_until("the dispatch", || dying.expert.stats().queued_rows > 0);
            dying.kill();
            waiting.join().unwrap()
        });
        let failure = only_failure(outcome);
        assert_eq!((failure.kind, failure.part), (Kind::StreamLost, 0));
        let again = vec![call.dispatch(0, &alive.target)];
        let outcome = router.exchange(
            call.key,
            || unreachable!(),
            again,
            at.as_deref(),
            call.deadline,
            call.deadline,
        );
        close_to(&answer(&outcome), &call.expected(&[]));
        router.close();
        dying = Group::with(
            &dying.target.clone(),
            expert_limits(0),
            Way::Nothing,
            settings(),
            None,
        );
    }
}

#[test]
fn an_expert_that_comes_back_at_its_address_is_dialled_again() {
    let mut group = Group::start(0, Way::Kernel);
    let router = router(&targets(&[&group]), &[]);
    LayerCall::new(1, 1, 10.0).check(&router, &alone(&[&group]), None);
    group.kill();
    let group = Group::with(
        &group.target.clone(),
        expert_limits(0),
        Way::Kernel,
        settings(),
        None,
    );
    LayerCall::new(2, 1, 10.0).check(&router, &alone(&[&group]), None);
    router.close();
}

#[test]
fn a_lost_aggregator_ends_its_calls_and_the_one_inside_takes_over() {
    let group = Group::start(0, Way::Nothing);
    let (aggregator, at) = aggregator(&targets(&[&group]));
    let router = router(&targets(&[&group]), std::slice::from_ref(&at));
    wait_until("the Collect stream", || aggregator.figures().sources == 1);
    let call = LayerCall::new(2, 1, 20.0);
    std::thread::scope(|scope| {
        let (router, call, at) = (&router, &call, &at);
        let endpoints = alone(&[&group]);
        let waiting = scope.spawn(move || begin(router, call, &endpoints, Some(at), call.deadline));
        wait_until("the dispatch", || group.expert.stats().queued_rows > 0);
        aggregator.close();
        let outcome = waiting.join().unwrap();
        assert!(matches!(outcome, Outcome::AggregatorLost(_)), "{outcome:?}");
    });
    router.close();
}

#[test]
fn a_part_whose_deadline_passed_in_the_queue_is_expired_and_costs_no_computation() {
    let group = Group::start(0, Way::Nothing);
    let router = router(&targets(&[&group]), &[]);
    let call = LayerCall::new(2, 1, 0.3);
    let endpoints = alone(&[&group]);
    let early = begin(&router, &call, &endpoints, None, monotonic() + 0.15);
    assert!(
        matches!(&early, Outcome::Incomplete(failures) if failures.is_empty()),
        "{early:?}"
    );
    // The time left travels, so the expert's deadline is as much later as the message came later than it was written.
    wait_until("the dispatch", || group.expert.stats().queued_rows == 2);
    let latest = monotonic() + 0.3;
    wait_until("the expert's deadline", || monotonic() > latest);
    assert!(group.expert.next_batch(Duration::ZERO).is_none());
    assert_eq!(group.expert.stats().expired, 1);
    // Under `wait` the deadline's answer names the part; it may come before the receipt.
    let outcome = router.exchange(
        call.key,
        || unreachable!(),
        vec![],
        None,
        call.deadline,
        call.deadline,
    );
    match outcome {
        Outcome::Incomplete(failures) => assert_eq!(failures[0].kind, Kind::Expired),
        Outcome::Combined { missing, .. } => assert_eq!(missing[0].part, 0),
        other => panic!("{other:?}"),
    }
    router.close();
}

#[test]
fn renormalise_answers_without_a_part_that_was_given_up() {
    let groups = [
        Group::start(0, Way::Interpreter),
        Group::start(1, Way::Nothing),
    ];
    let groups: Vec<&Group> = groups.iter().collect();
    for through in [false, true] {
        let (_aggregator, at) = aggregator(&targets(&groups));
        let at = through.then_some(at);
        let router = router(&targets(&groups), at.as_slice());
        warm(&router, &alone(&groups[..1]), at.as_deref());
        let mut call = LayerCall::new(40, 2, 20.0);
        call.policy = MissingPolicy::Renormalise;
        let outcome = begin(
            &router,
            &call,
            &alone(&groups),
            at.as_deref(),
            monotonic() + 0.2,
        );
        assert!(
            matches!(&outcome, Outcome::Incomplete(failures) if failures.is_empty()),
            "{outcome:?}"
        );
        router.give_up(call.key, 1, "nobody has it".into());
        let outcome = router.exchange(
            call.key,
            || unreachable!(),
            vec![],
            at.as_deref(),
            call.deadline,
            call.deadline,
        );
        let Outcome::Combined { missing, .. } = &outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(
            (missing.len(), missing[0].reason.as_str()),
            (1, "nobody has it")
        );
        close_to(&answer(&outcome), &renormalised(&call, 1));
        router.close();
    }
}

/// Each token's sum without a part, times all its weights over those that are left.
fn renormalised(call: &LayerCall, without: u32) -> Vec<f64> {
    let (mut all, mut left) = (vec![0f64; call.rows.len()], vec![0f64; call.rows.len()]);
    for part in &call.parts {
        for (slot, &row) in part.slot_rows.iter().enumerate() {
            let token = part.token_index[row as usize] as usize;
            all[token] += f64::from(part.slot_weights[slot]);
            if part.part != without {
                left[token] += f64::from(part.slot_weights[slot]);
            }
        }
    }
    let mut sums = call.expected(&[without]);
    for (token, row) in sums.chunks_exact_mut(HIDDEN).enumerate() {
        if left[token] > 0.0 {
            row.iter_mut()
                .for_each(|value| *value *= all[token] / left[token]);
        }
    }
    sums
}

#[test]
fn a_full_queue_says_when_to_try_again_and_how_long_it_is() {
    let mut limits = expert_limits(0);
    limits.max_queued_rows = 3;
    let group = Group::with(&target(), limits, Way::Nothing, settings(), None);
    let router = router(&targets(&[&group]), &[]);
    let endpoints = alone(&[&group]);
    let first = LayerCall::new(3, 1, 20.0);
    begin(&router, &first, &endpoints, None, monotonic());
    wait_until("the first dispatch", || {
        begin_again(&router, &first);
        group.expert.stats().queued_rows == 3
    });
    let second = LayerCall::new(1, 1, 20.0);
    let failure = only_failure(begin(&router, &second, &endpoints, None, second.deadline));
    assert_eq!(failure.kind, Kind::Overloaded);
    assert!(
        failure.message.starts_with("3 rows wait, the bound is 3"),
        "{}",
        failure.message
    );
    assert!(failure.retry_after_s > 0.0);
    assert_eq!(
        (
            group.expert.stats().overloaded,
            router.queued_rows(&group.target)
        ),
        (1, 3)
    );
    router.close();
}

/// Drives the router for a moment.
fn begin_again(router: &Router, call: &LayerCall) {
    router.exchange(
        call.key,
        || unreachable!(),
        vec![],
        None,
        call.deadline,
        monotonic(),
    );
}

#[test]
fn a_failing_kernel_fails_its_batch_with_its_own_words() {
    let group = Group::start(0, Way::Interpreter);
    let set_handle = |handle| {
        let kernel = moe_wire_native::expert::Kernel {
            function: scaled,
            handle,
            threads: THREADS,
        };
        // SAFETY: `scaled` only compares its handle.
        unsafe { group.expert.set_kernel(LAYER, kernel) };
    };
    set_handle(1);
    let router = router(&targets(&[&group]), &[]);
    let call = LayerCall::new(2, 1, 10.0);
    let failure = only_failure(begin(
        &router,
        &call,
        &alone(&[&group]),
        None,
        call.deadline,
    ));
    assert_eq!(failure.kind, Kind::Failed);
    assert_eq!(failure.message, "computing layer 3 failed: no memory today");
    set_handle(0);
    LayerCall::new(9, 1, 10.0).check(&router, &alone(&[&group]), None);
    router.close();
}

#[test]
fn an_expert_without_the_named_collector_says_so() {
    let group = Group::start(0, Way::Kernel);
    block_on(async {
        let mut talk = Talk::<DispatchResponse>::open(&group.target, DISPATCH)
            .await
            .unwrap();
        let mut dispatch = LayerCall::new(1, 1, 10.0).dispatch(0, "").request;
        dispatch.aggregator = "nobody".into();
        talk.send(&dispatch);
        let receipt = receipt(&mut talk).await;
        assert_eq!(receipt.status(), PartStatus::NoCollector);
        assert!(receipt.message.contains("nobody"), "{}", receipt.message);
    });
}

/// The next receipt; the stream's first message may come before it.
async fn receipt(talk: &mut Talk<DispatchResponse>) -> Receipt {
    loop {
        match talk.next().await.unwrap().unwrap().kind.unwrap() {
            Word::Opened(_) => {}
            Word::Receipt(receipt) => return receipt,
        }
    }
}

#[test]
fn a_malformed_dispatch_is_invalid_by_name_and_the_stream_goes_on() {
    let group = Group::start(0, Way::Kernel);
    block_on(async {
        let mut talk = Talk::<DispatchResponse>::open(&group.target, DISPATCH)
            .await
            .unwrap();
        let mut dispatch = LayerCall::new(1, 1, 10.0).dispatch(0, "").request;
        dispatch.aggregator = "a".into();
        dispatch.slot_rows.as_mut().unwrap().data = Bytes::from_static(b"abc");
        for _ in 0..2 {
            talk.send(&dispatch);
            let receipt = receipt(&mut talk).await;
            assert_eq!(receipt.status(), PartStatus::Invalid);
            assert!(
                receipt.message.starts_with("slot_rows.data: got 3 bytes"),
                "{}",
                receipt.message
            );
        }
    });
    assert_eq!(group.expert.stats().invalid, 2);
}

#[test]
fn bytes_that_are_no_message_end_their_stream_and_no_other_on_the_connection() {
    let group = Group::start(0, Way::Kernel);
    block_on(async {
        let channel = connect(&group.target, &settings()).await.unwrap();
        let mut good = Talk::<DispatchResponse>::over(channel.clone(), DISPATCH)
            .await
            .unwrap();
        let mut bad = Talk::<DispatchResponse>::over(channel, DISPATCH)
            .await
            .unwrap();
        bad.say.put(
            Bytes::from_static(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
            0,
            None,
        );
        let status = bad.end().await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        good.send(&LayerCall::new(1, 1, 10.0).dispatch(0, "").request);
        assert_eq!(receipt(&mut good).await.status(), PartStatus::Invalid);
    });
}

#[test]
fn a_message_beyond_the_bound_ends_its_stream_and_no_other_on_the_connection() {
    let mut small = settings();
    small.max_message_bytes = 10_000;
    let group = Group::with(&target(), expert_limits(0), Way::Kernel, small, None);
    block_on(async {
        let channel = connect(&group.target, &settings()).await.unwrap();
        let mut good = Talk::<DispatchResponse>::over(channel.clone(), DISPATCH)
            .await
            .unwrap();
        let mut bad = Talk::<DispatchResponse>::over(channel, DISPATCH)
            .await
            .unwrap();
        bad.say.put(vec![0; 10_001].into(), 0, None);
        let status = bad.end().await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        good.send(&LayerCall::new(1, 1, 10.0).dispatch(0, "").request);
        assert_eq!(receipt(&mut good).await.status(), PartStatus::Invalid);
    });
}

#[test]
fn a_router_never_sends_what_its_settings_forbid() {
    let group = Group::start(0, Way::Kernel);
    let mut small = settings();
    small.max_message_bytes = 4000;
    let router = router_with(&targets(&[&group]), &[], small);
    let call = LayerCall::new(100, 1, 10.0);
    let failure = only_failure(begin(
        &router,
        &call,
        &alone(&[&group]),
        None,
        call.deadline,
    ));
    assert_eq!(failure.kind, Kind::Invalid);
    router.abandon(call.key);
    LayerCall::new(2, 1, 10.0).check(&router, &alone(&[&group]), None);
    router.close();
}

#[test]
fn the_newest_collect_stream_of_a_name_wins() {
    let group = Group::start(0, Way::Kernel);
    block_on(async {
        let hello = CollectRequest {
            aggregator: "a".into(),
        };
        let mut first = Talk::<CollectResponse>::open(&group.target, COLLECT)
            .await
            .unwrap();
        first.send(&hello);
        first.next().await.unwrap().unwrap();
        let mut second = Talk::<CollectResponse>::open(&group.target, COLLECT)
            .await
            .unwrap();
        second.send(&hello);
        second.next().await.unwrap().unwrap();
        let status = first.end().await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
        let mut router = Talk::<DispatchResponse>::open(&group.target, DISPATCH)
            .await
            .unwrap();
        let call = LayerCall::new(1, 1, 10.0);
        let mut dispatch = call.dispatch(0, "").request;
        dispatch.aggregator = "a".into();
        router.send(&dispatch);
        assert_eq!(receipt(&mut router).await.status(), PartStatus::Pushed);
        let partial = second.next().await.unwrap().unwrap();
        assert!(partial.encoded_len() > HIDDEN * 4);
        second.send(&hello);
        assert_eq!(
            second.end().await.unwrap_err().code(),
            Code::InvalidArgument
        );
    });
}

#[test]
fn first_messages_that_name_nobody_are_refused() {
    let group = Group::start(0, Way::Kernel);
    let (_aggregator, at) = aggregator(&[]);
    block_on(async {
        let mut nameless = Talk::<CollectResponse>::open(&group.target, COLLECT)
            .await
            .unwrap();
        nameless.send(&CollectRequest::default());
        assert_eq!(
            nameless.end().await.unwrap_err().code(),
            Code::InvalidArgument
        );
        let mut rude = Talk::<CombineResponse>::open(&at, COMBINE).await.unwrap();
        rude.send(&CombineRequest::default());
        assert_eq!(rude.end().await.unwrap_err().code(), Code::InvalidArgument);
        let mut silent = Talk::<CombineResponse>::open(&at, COMBINE).await.unwrap();
        silent.say.end(None);
        assert_eq!(
            silent.end().await.unwrap_err().code(),
            Code::InvalidArgument
        );
    });
}

#[test]
fn a_plan_that_makes_no_sense_fails_its_call_and_the_stream_goes_on() {
    let (_aggregator, at) = aggregator(&[]);
    block_on(async {
        let mut talk = Talk::<CombineResponse>::open(&at, COMBINE).await.unwrap();
        let ask = |kind| CombineRequest { kind: Some(kind) };
        talk.send(&ask(Ask::Hello(Hello { router: "r".into() })));
        let ready = talk.next().await.unwrap().unwrap();
        assert!(
            matches!(ready.kind, Some(Answer::Ready(ready)) if ready.instance.starts_with("agg."))
        );
        for policy in [0, 1] {
            let plan = moe_wire_native::api::aggregator::Plan {
                call_id: 5,
                policy,
                dtype: 1,
                ..Default::default()
            };
            talk.send(&ask(Ask::Plan(plan)));
            let Some(Answer::Failed(failed)) = talk.next().await.unwrap().unwrap().kind else {
                panic!("want a failed call");
            };
            assert!(failed.message.contains("plan"), "{}", failed.message);
            assert_eq!((failed.call_id, failed.deadline), (5, false));
        }
        talk.send(&CombineRequest::default());
        assert_eq!(talk.end().await.unwrap_err().code(), Code::InvalidArgument);
    });
}

#[test]
fn a_draining_expert_refuses_what_is_new_answers_what_it_has_and_ends_its_streams() {
    let group = Group::start(0, Way::Nothing);
    let router = router(&targets(&[&group]), &[]);
    let endpoints = alone(&[&group]);
    warm_alone(&group, &router);
    let call = LayerCall::new(2, 1, 20.0);
    std::thread::scope(|scope| {
        let (router, call, endpoints) = (&router, &call, &endpoints);
        let waiting = scope.spawn(move || call.run(router, endpoints, None));
        wait_until("the dispatch", || group.expert.stats().queued_rows == 2);
        let draining = scope.spawn(|| group.expert.drained(PATIENCE));
        assert!(!group.expert.is_settled(Duration::ZERO));
        let batch = group.expert.next_batch(PATIENCE).expect("what was queued");
        let partials = compute(&batch);
        group.expert.finish(batch, partials).unwrap();
        assert!(group.expert.next_batch(PATIENCE).is_none());
        assert!(draining.join().unwrap());
        close_to(&answer(&waiting.join().unwrap()), &call.expected(&[]));
    });
    assert!(group.expert.is_settled(Duration::ZERO));
    block_on(async {
        let refused = Talk::<DispatchResponse>::open(&group.target, DISPATCH).await;
        assert!(refused.is_err());
    });
    router.close();
}

/// One call through a group whose queue nobody takes from.
fn warm_alone(group: &Group, router: &Router) {
    let call = LayerCall::new(1, 1, 20.0);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| call.run(router, &alone(&[group]), None));
        while !waiting.is_finished() {
            if let Some(batch) = group.expert.next_batch(Duration::from_millis(5)) {
                let partials = compute(&batch);
                group.expert.finish(batch, partials).unwrap();
            }
        }
    });
}

#[test]
fn a_dispatch_on_an_open_stream_is_refused_while_draining() {
    let group = Group::start(0, Way::Kernel);
    let router = router(&targets(&[&group]), &[]);
    warm(&router, &alone(&[&group]), None);
    group.expert.drain();
    let call = LayerCall::new(1, 1, 10.0);
    let failure = only_failure(begin(
        &router,
        &call,
        &alone(&[&group]),
        None,
        call.deadline,
    ));
    assert_eq!(failure.kind, Kind::Draining);
    router.close();
}

#[test]
fn a_draining_aggregator_answers_its_open_calls_then_ends() {
    let group = Group::start(0, Way::Nothing);
    let (aggregator, at) = aggregator(&targets(&[&group]));
    let router = router(&targets(&[&group]), std::slice::from_ref(&at));
    wait_until("the Collect stream", || aggregator.figures().sources == 1);
    let call = LayerCall::new(2, 1, 20.0);
    std::thread::scope(|scope| {
        let (router, call, at, aggregator) = (&router, &call, &at, &aggregator);
        let endpoints = alone(&[&group]);
        let waiting = scope.spawn(move || call.run(router, &endpoints, Some(at)));
        wait_until("the plan and the dispatch", || {
            aggregator.figures().open == 1 && group.expert.stats().queued_rows == 2
        });
        let draining = scope.spawn(move || aggregator.drained(PATIENCE));
        let batch = group.expert.next_batch(PATIENCE).expect("the dispatch");
        let partials = compute(&batch);
        group.expert.finish(batch, partials).unwrap();
        close_to(&answer(&waiting.join().unwrap()), &call.expected(&[]));
        assert!(draining.join().unwrap());
    });
    assert!(block_on(connect(&at, &settings())).is_err());
    router.close();
}

#[test]
fn closing_is_prompt_while_peers_wait() {
    let mut group = Group::start(0, Way::Nothing);
    let (aggregator, at) = aggregator(&targets(&[&group]));
    let router = router(&targets(&[&group]), std::slice::from_ref(&at));
    wait_until("the Collect stream", || aggregator.figures().sources == 1);
    let call = LayerCall::new(2, 1, 60.0);
    begin(
        &router,
        &call,
        &alone(&[&group]),
        Some(&at),
        monotonic() + 0.1,
    );
    let begun = Instant::now();
    group.kill();
    aggregator.close();
    router.close();
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn an_abandoned_call_is_forgotten_by_the_aggregator() {
    let group = Group::start(0, Way::Nothing);
    let (aggregator, at) = aggregator(&targets(&[&group]));
    let router = router(&targets(&[&group]), std::slice::from_ref(&at));
    let call = LayerCall::new(2, 1, 60.0);
    begin(
        &router,
        &call,
        &alone(&[&group]),
        Some(&at),
        monotonic() + 0.1,
    );
    wait_until("the plan", || aggregator.figures().open == 1);
    router.abandon(call.key);
    wait_until("the end of the call", || aggregator.figures().open == 0);
    let other = LayerCall::new(2, 1, 60.0);
    begin(
        &router,
        &other,
        &alone(&[&group]),
        Some(&at),
        monotonic() + 0.1,
    );
    wait_until("the next plan", || aggregator.figures().open == 1);
    router.close();
    wait_until("the end of the router's calls", || {
        aggregator.figures().open == 0
    });
    assert_eq!(aggregator.figures().tally.combined, 0);
}
