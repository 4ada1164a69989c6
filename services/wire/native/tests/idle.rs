//! Streams that nobody uses for a while: somebody must answer keep-alive, and the next call must be answered at once.

mod support;

use std::time::{Duration, Instant};

use support::*;

/// Longer than fifteen signs of life.
const IDLE: Duration = Duration::from_secs(3);

#[test]
fn a_stream_left_idle_with_short_keep_alive_still_answers_at_once() {
    let mut watchful = settings();
    watchful.keepalive = Duration::from_millis(200);
    watchful.keepalive_timeout = Duration::from_millis(400);
    let group = Group::with(
        &target(),
        expert_limits(0),
        Way::Nothing,
        watchful.clone(),
        None,
    );
    let router = router_with(&targets(&[&group]), &[], watchful);
    let kernel = moe_wire_native::expert::Kernel {
        function: scaled,
        handle: 0,
        threads: THREADS,
    };
    // SAFETY: `scaled` keeps the promise and lives for ever.
    unsafe { group.expert.set_kernel(LAYER, kernel) };
    let answered = |call: LayerCall| {
        std::thread::scope(|scope| {
            let begun = Instant::now();
            let waiting = scope.spawn(|| call.run(&router, &alone(&[&group]), None));
            while !waiting.is_finished() {
                assert!(group.expert.next_batch(Duration::from_millis(5)).is_none());
            }
            close_to(&answer(&waiting.join().unwrap()), &call.expected(&[]));
            begun.elapsed()
        })
    };
    answered(LayerCall::new(1, 1, 10.0));
    // Time is what this test is about: neither end is called meanwhile, both caretakers answer the pings.
    std::thread::sleep(IDLE);
    let call = LayerCall::new(2, 1, 10.0);
    let outcome = {
        let endpoints = alone(&[&group]);
        let send = vec![call.dispatch(0, &endpoints[0][0])];
        let begun = Instant::now();
        let outcome = std::thread::scope(|scope| {
            let (router, call) = (&router, &call);
            let waiting = scope.spawn(move || {
                router.exchange(
                    call.key,
                    || call.plan(),
                    send,
                    None,
                    call.deadline,
                    call.deadline,
                )
            });
            while !waiting.is_finished() {
                assert!(group.expert.next_batch(Duration::from_millis(5)).is_none());
            }
            waiting.join().unwrap()
        });
        assert!(
            begun.elapsed() < Duration::from_millis(500),
            "{:?}",
            begun.elapsed()
        );
        outcome
    };
    // The first exchange was enough: the stream had not been lost and dialled again.
    close_to(&answer(&outcome), &call.expected(&[]));
    router.close();
}

#[test]
fn a_peer_that_gives_no_sign_of_life_is_lost() {
    let mut watchful = settings();
    watchful.keepalive = Duration::from_millis(100);
    watchful.keepalive_timeout = Duration::from_millis(300);
    // Accepts connections and never says a word on them.
    let at = target();
    let silent = std::os::unix::net::UnixListener::bind(at.strip_prefix("unix:").unwrap()).unwrap();
    let talking = std::thread::spawn(move || {
        let (mut connection, _) = silent.accept().unwrap();
        // The server's empty SETTINGS, then nothing: an open connection, an open stream.
        std::io::Write::write_all(&mut connection, &[0, 0, 0, 4, 0, 0, 0, 0, 0]).unwrap();
        let begun = Instant::now();
        let mut buffer = [0u8; 4096];
        while std::io::Read::read(&mut connection, &mut buffer).is_ok_and(|read| read > 0) {}
        begun.elapsed()
    });
    let router = router_with(&[at], &[], watchful);
    let lasted = talking.join().unwrap();
    assert!(lasted < Duration::from_secs(5), "{lasted:?}");
    router.close();
}
