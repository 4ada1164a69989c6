//! Paths that are not the wire's: handed on to the server behind, both ways as they come, statuses and all.

mod support;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use moe_wire_native::api::expert::CollectRequest;
use moe_wire_native::driver::Driver;
use moe_wire_native::serve::converse::{converse, route};
use moe_wire_native::serve::{Listener, Served, Server};
use support::raw::{block_on, Talk};
use support::*;
use tonic::{Code, Status};

const ECHO: &str = "/some.other.v1.Service/Echo";

/// Says what it hears, and ends with an error of its own when it hears "enough".
fn echo(target: &str) -> (Server, Arc<Driver>) {
    let driver = Driver::new("behind", || {}).unwrap();
    let talk = |requests, outbox: moe_wire_native::outbox::Outbox<CollectRequest>| async move {
        let handle = |request: CollectRequest| {
            if request.aggregator == "enough" {
                return Err(Status::failed_precondition("enough of it"));
            }
            outbox.put(request, 0, None);
            Ok(())
        };
        converse(requests, &outbox, handle, std::future::ready(())).await;
    };
    let served = Served {
        routes: vec![(ECHO, route(&settings(), talk))],
        back_end: None,
    };
    let server = Server::start(
        Listener::bind(target).unwrap(),
        served,
        &settings(),
        driver.handle(),
    )
    .unwrap();
    (server, driver)
}

fn say(text: &str) -> CollectRequest {
    CollectRequest {
        aggregator: text.into(),
    }
}

#[test]
fn an_unknown_path_streams_both_ways_through_to_the_server_behind() {
    let behind = target();
    let _echo = echo(&behind);
    let group = Group::with(
        &target(),
        expert_limits(0),
        Way::Kernel,
        settings(),
        Some(behind),
    );
    block_on(async {
        let mut talk = Talk::<CollectRequest>::open(&group.target, ECHO)
            .await
            .unwrap();
        for text in ["one", "two"] {
            talk.send(&say(text));
            assert_eq!(talk.next().await.unwrap().unwrap().aggregator, text);
        }
        talk.send(&say("enough"));
        let status = talk.end().await.unwrap_err();
        assert_eq!(
            (status.code(), status.message()),
            (Code::FailedPrecondition, "enough of it")
        );
        let mut last = Talk::<CollectRequest>::open(&group.target, ECHO)
            .await
            .unwrap();
        last.send(&say("bye"));
        last.say.end(None);
        assert_eq!(last.next().await.unwrap().unwrap().aggregator, "bye");
        assert!(last.next().await.unwrap().is_none());
    });
    let router = router(&targets(&[&group]), &[]);
    LayerCall::new(1, 1, 10.0).check(&router, &alone(&[&group]), None);
    router.close();
}

#[test]
fn a_server_behind_that_is_not_there_is_unavailable_by_name_until_it_is() {
    let behind = target();
    let group = Group::with(
        &target(),
        expert_limits(0),
        Way::Kernel,
        settings(),
        Some(behind.clone()),
    );
    block_on(async {
        let status = Talk::<CollectRequest>::open(&group.target, ECHO)
            .await
            .err()
            .unwrap();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(
            status.message().contains(ECHO) && status.message().contains(&behind),
            "{}",
            status.message()
        );
        let _echo = echo(&behind);
        let mut talk = Talk::<CollectRequest>::open(&group.target, ECHO)
            .await
            .unwrap();
        talk.send(&say("there"));
        assert_eq!(talk.next().await.unwrap().unwrap().aggregator, "there");
    });
}

#[test]
fn without_a_server_behind_an_unknown_path_is_unimplemented() {
    let group = Group::start(0, Way::Kernel);
    block_on(async {
        let status = Talk::<CollectRequest>::open(&group.target, ECHO)
            .await
            .err()
            .unwrap();
        assert_eq!(status.code(), Code::Unimplemented);
    });
}

#[test]
fn hanging_up_in_front_hangs_up_behind() {
    let behind = target();
    let driver = Driver::new("behind", || {}).unwrap();
    let (gone, mut told) = tokio::sync::mpsc::unbounded_channel::<()>();
    let talk = move |requests, outbox: moe_wire_native::outbox::Outbox<CollectRequest>| {
        let gone = gone.clone();
        async move {
            let heard = |_| Ok(());
            converse::<CollectRequest, _>(requests, &outbox, heard, std::future::pending()).await;
            let _ = gone.send(());
        }
    };
    let served = Served {
        routes: vec![(ECHO, route(&settings(), talk))],
        back_end: None,
    };
    let _server = Server::start(
        Listener::bind(&behind).unwrap(),
        served,
        &settings(),
        driver.handle(),
    )
    .unwrap();
    let group = Group::with(
        &target(),
        expert_limits(0),
        Way::Kernel,
        settings(),
        Some(behind),
    );
    block_on(async {
        let talk = Talk::<CollectRequest>::open(&group.target, ECHO)
            .await
            .unwrap();
        assert!(talk.say.put(Bytes::new(), 0, None));
        assert!(
            tokio::time::timeout(Duration::from_millis(100), told.recv())
                .await
                .is_err()
        );
        drop(talk);
        tokio::time::timeout(PATIENCE, told.recv())
            .await
            .expect("the end of the call behind");
    });
}
