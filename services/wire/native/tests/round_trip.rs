//! Layer calls that nothing disturbs: every place of the combiner, every way to compute, several routers and replicas.

mod support;

use support::*;

#[test]
fn the_answer_is_the_weighted_sum_with_the_combiner_inside_the_router() {
    let groups = [
        Group::start(0, Way::Interpreter),
        Group::start(1, Way::Interpreter),
    ];
    let groups: Vec<&Group> = groups.iter().collect();
    let router = router(&targets(&groups), &[]);
    for tokens in [1, 2, 7, 100] {
        LayerCall::new(tokens, 2, 10.0).check(&router, &alone(&groups), None);
    }
    router.close();
}

#[test]
fn the_answer_is_the_weighted_sum_through_an_aggregator() {
    let groups = [
        Group::start(0, Way::Kernel),
        Group::start(1, Way::Interpreter),
    ];
    let groups: Vec<&Group> = groups.iter().collect();
    let (aggregator, at) = aggregator(&targets(&groups));
    let router = router(&targets(&groups), std::slice::from_ref(&at));
    for tokens in [1, 2, 7, 100] {
        LayerCall::new(tokens, 2, 10.0).check(&router, &alone(&groups), Some(&at));
    }
    let figures = aggregator.figures();
    assert_eq!(
        (figures.tally.combined, figures.open, figures.sources),
        (4, 0, 2)
    );
    router.close();
}

#[test]
fn a_layer_with_a_kernel_is_computed_inside_and_counted() {
    let group = Group::start(0, Way::Kernel);
    let router = router(&targets(&[&group]), &[]);
    // Until both streams are open a part may be computed and have nowhere to go, and is sent again.
    LayerCall::new(1, 1, 10.0).check(&router, &alone(&[&group]), None);
    let before = group.expert.computed();
    let small = LayerCall::new(3, 1, 10.0);
    small.check(&router, &alone(&[&group]), None);
    let computed = group.expert.computed();
    assert_eq!(
        (
            computed.batches - before.batches,
            computed.rows - before.rows
        ),
        (1, 3)
    );
    let mut slots = before.slots_by_expert;
    for &expert in &small.parts[0].slot_experts {
        *slots.entry(expert).or_insert(0u64) += 1;
    }
    assert_eq!(computed.slots_by_expert, slots);
    assert!(computed.seconds > before.seconds);
    LayerCall::new(500, 1, 10.0).check(&router, &alone(&[&group]), None);
    let large = group.expert.computed();
    assert_eq!(
        (large.batches - computed.batches, large.rows - computed.rows),
        (1, 500)
    );
    router.close();
}

#[test]
fn dispatches_that_wait_together_are_one_batch_for_all_routers() {
    let idle = Group::start(0, Way::Nothing);
    let kernel = moe_wire_native::expert::Kernel {
        function: scaled,
        handle: 0,
        threads: THREADS,
    };
    // SAFETY: `scaled` keeps the promise and lives for ever.
    unsafe { idle.expert.set_kernel(LAYER, kernel) };
    let routers = [
        router(&targets(&[&idle]), &[]),
        router(&targets(&[&idle]), &[]),
    ];
    // Runs one call on each router at once; the expert begins when so many rows wait.
    let run = |calls: [LayerCall; 2], rows: usize| {
        std::thread::scope(|scope| {
            let threads: Vec<_> = routers
                .iter()
                .zip(&calls)
                .map(|(router, call)| scope.spawn(|| call.check(router, &alone(&[&idle]), None)))
                .collect();
            wait_until("the dispatches", || idle.expert.stats().queued_rows >= rows);
            while threads.iter().any(|thread| !thread.is_finished()) {
                let moment = std::time::Duration::from_millis(5);
                assert!(idle.expert.next_batch(moment).is_none());
            }
            threads
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
        });
    };
    // The first calls open the streams.
    run([LayerCall::new(1, 1, 20.0), LayerCall::new(1, 1, 20.0)], 1);
    let before = idle.expert.computed();
    run([LayerCall::new(2, 1, 20.0), LayerCall::new(3, 1, 20.0)], 5);
    let after = idle.expert.computed();
    assert_eq!(
        (after.batches - before.batches, after.rows - before.rows),
        (1, 5)
    );
    routers.iter().for_each(|router| router.close());
}

#[test]
fn few_rows_and_many_of_two_routers_are_each_computed_once() {
    // Up to 32 rows are computed inside the runtime, more outside of it, and both wait for one another.
    const SIZES: [usize; 5] = [1, 40, 3, 32, 200];
    let group = Group::start(0, Way::Kernel);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let router = router(&targets(&[&group]), &[]);
                for round in 0..200 {
                    LayerCall::new(SIZES[round % SIZES.len()], 1, 10.0).check(
                        &router,
                        &alone(&[&group]),
                        None,
                    );
                }
                router.close();
            });
        }
    });
    let rows = 2 * 200 / SIZES.len() * SIZES.iter().sum::<usize>();
    assert_eq!(group.expert.computed().rows, rows as u64);
    assert_eq!(group.expert.stats().queued_rows, 0);
}

#[test]
fn two_routers_share_experts_and_aggregator_without_mixing_answers() {
    let groups = [Group::start(0, Way::Kernel), Group::start(1, Way::Kernel)];
    let groups: Vec<&Group> = groups.iter().collect();
    let (_aggregator, at) = aggregator(&targets(&groups));
    std::thread::scope(|scope| {
        for place in [None, Some(at.clone())] {
            let (groups, at) = (&groups, &at);
            scope.spawn(move || {
                let router = router(&targets(groups), std::slice::from_ref(at));
                for round in 0..200 {
                    LayerCall::new(1 + round % 5, 2, 10.0).check(
                        &router,
                        &alone(groups),
                        place.as_deref(),
                    );
                }
                router.close();
            });
        }
    });
}

#[test]
fn the_first_of_two_replicas_to_answer_wins_and_the_second_is_dropped() {
    let groups = [
        Group::start(0, Way::Interpreter),
        Group::start(0, Way::Interpreter),
    ];
    let groups: Vec<&Group> = groups.iter().collect();
    let (aggregator, at) = aggregator(&targets(&groups));
    let router = router(&targets(&groups), std::slice::from_ref(&at));
    wait_until("both Collect streams", || aggregator.figures().sources == 2);
    LayerCall::new(1, 1, 10.0).check(&router, &alone(&groups[..1]), Some(&at));
    LayerCall::new(1, 1, 10.0).check(&router, &alone(&groups[1..]), Some(&at));
    let call = LayerCall::new(4, 1, 10.0);
    let both = groups
        .iter()
        .map(|group| call.dispatch(0, &group.target))
        .collect();
    let outcome = router.exchange(
        call.key,
        || call.plan(),
        both,
        Some(&at),
        call.deadline,
        call.deadline,
    );
    close_to(&answer(&outcome), &call.expected(&[]));
    wait_until("the second part", || {
        aggregator.figures().tally.duplicates == 1
    });
    router.close();
}

#[test]
fn the_streams_work_over_tcp_too() {
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let group = Group::with(
        &port.to_string(),
        expert_limits(0),
        Way::Kernel,
        settings(),
        None,
    );
    let router = router(&targets(&[&group]), &[]);
    LayerCall::new(3, 1, 10.0).check(&router, &alone(&[&group]), None);
    router.close();
}
