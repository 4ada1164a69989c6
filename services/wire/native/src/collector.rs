//! Collects partials: one Collect stream to every expert endpoint, fed into a combiner.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::runtime::Handle;

use crate::api::expert::{collect_response::Kind, CollectRequest, CollectResponse};
use crate::combiner::Key;
use crate::host::Host;
use crate::link::{End, Link, State};
use crate::names::COLLECT;
use crate::settings::Settings;
use crate::tensors::Rows;

/// Which process was last subscribed to, by endpoint.
type Known = Arc<Mutex<HashMap<String, String>>>;

struct Source {
    link: Arc<Link<CollectRequest>>,
    end: Arc<CollectEnd>,
}

/// name: under which experts know this collector; new at each start, or a stream of an earlier life could get parts.
pub struct Collector {
    name: String,
    host: Arc<Host>,
    settings: Settings,
    runtime: Handle,
    sources: Mutex<HashMap<String, Source>>,
    known: Known,
}

impl Collector {
    pub fn new(name: &str, host: Arc<Host>, settings: Settings, runtime: Handle) -> Self {
        Collector {
            name: name.to_string(),
            host,
            settings,
            runtime,
            sources: Mutex::default(),
            known: Known::default(),
        }
    }

    /// The experts that exist now, ready or not: dials new ones, closes the streams to others.
    pub fn set_endpoints(&self, endpoints: &[String]) {
        let mut gone = vec![];
        {
            let mut sources = self.sources.lock().unwrap();
            let removed: Vec<String> = sources
                .keys()
                .filter(|at| !endpoints.contains(at))
                .cloned()
                .collect();
            gone.extend(removed.iter().filter_map(|at| sources.remove(at)));
            for endpoint in endpoints {
                match sources.get(endpoint) {
                    Some(source) => source.link.redial(),
                    None => {
                        sources.insert(endpoint.clone(), self.dial(endpoint));
                    }
                }
            }
        }
        for source in gone {
            source.link.close();
            source.end.lost("the endpoint was removed");
        }
    }

    /// Streams that are open.
    pub fn open_sources(&self) -> usize {
        self.sources
            .lock()
            .unwrap()
            .values()
            .filter(|source| source.link.state() == State::Open)
            .count()
    }

    fn dial(&self, endpoint: &str) -> Source {
        let end = Arc::new(CollectEnd {
            endpoint: endpoint.to_string(),
            host: self.host.clone(),
            known: self.known.clone(),
            instance: Mutex::default(),
        });
        let hello = CollectRequest {
            aggregator: self.name.clone(),
        };
        let link = Link::dial(
            endpoint,
            COLLECT,
            Some(hello),
            end.clone(),
            self.settings.clone(),
            &self.runtime,
        );
        Source { link, end }
    }
}

/// The source counts as lost both when the stream breaks and when the same process is subscribed to again: in between,
/// it may have pushed to a stream that it did not yet know to be broken.
struct CollectEnd {
    endpoint: String,
    host: Arc<Host>,
    known: Known,
    instance: Mutex<Option<String>>,
}

impl End<CollectResponse> for CollectEnd {
    fn opened(&self, first: CollectResponse) {
        let Some(Kind::Subscribed(subscribed)) = first.kind else {
            return;
        };
        let instance = subscribed.instance;
        *self.instance.lock().unwrap() = Some(instance.clone());
        let before = self
            .known
            .lock()
            .unwrap()
            .insert(self.endpoint.clone(), instance.clone());
        if before.as_deref() == Some(instance.as_str()) {
            self.host.source_lost(&instance);
        }
    }

    fn received(&self, message: CollectResponse) {
        if let Some(Kind::Partial(partial)) = message.kind {
            let key = Key {
                call_id: partial.call_id,
                layer: partial.layer,
            };
            self.host
                .part(key, partial.part, Rows::read(partial.rows, "rows"));
        }
    }

    fn lost(&self, _message: &str) {
        let instance = self.instance.lock().unwrap().take();
        if let Some(instance) = instance {
            self.host.source_lost(&instance);
        }
    }
}
