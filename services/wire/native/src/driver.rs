//! A runtime that runs on whichever thread calls, and on a caretaker's when nobody does.
//!
//! The engine's thread (or an expert's compute thread) drives all streams while it waits for an answer, so an answer
//! costs no thread's wake-up. Between calls somebody has to answer keep-alive, make room in windows and dial again: the
//! caretaker takes over when no call has been for `IDLE`, and sleeps inside the runtime, without polling, until a call
//! wants it back.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Notify;

/// How long after the last call the caretaker takes over.
const IDLE: Duration = Duration::from_millis(20);
/// How often the caretaker looks up from the runtime, for the log.
const LOOK: Duration = Duration::from_secs(1);

struct Shared {
    calls: AtomicU64,
    active: AtomicU64,
    caretaker_inside: AtomicBool,
    leave: Notify,
    closed: AtomicBool,
    sleep: Mutex<()>,
    wake: Condvar,
}

pub struct Driver {
    runtime: Mutex<Option<Arc<Runtime>>>,
    handle: Handle,
    shared: Arc<Shared>,
    caretaker: Mutex<Option<JoinHandle<()>>>,
}

impl Driver {
    /// tick: called by the caretaker now and then, outside of the runtime.
    pub fn new(name: &str, tick: impl Fn() + Send + 'static) -> std::io::Result<Arc<Driver>> {
        let runtime = Arc::new(
            Builder::new_current_thread()
                .enable_io()
                .enable_time()
                .build()?,
        );
        let shared = Arc::new(Shared {
            calls: AtomicU64::new(0),
            active: AtomicU64::new(0),
            caretaker_inside: AtomicBool::new(false),
            leave: Notify::new(),
            closed: AtomicBool::new(false),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        });
        let care = {
            let (runtime, shared) = (runtime.clone(), shared.clone());
            move || take_care(&runtime, &shared, &tick)
        };
        let caretaker = std::thread::Builder::new()
            .name(format!("{name}-care"))
            .spawn(care)?;
        Ok(Arc::new(Driver {
            handle: runtime.handle().clone(),
            runtime: Mutex::new(Some(runtime)),
            shared,
            caretaker: Mutex::new(Some(caretaker)),
        }))
    }

    /// Starts a task; it runs while somebody drives.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(task);
    }

    /// The runtime's handle, to make sockets with.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Has the caretaker look at once: something was spawned or queued by a thread that does not drive.
    pub fn nudge(&self) {
        let _guard = self.shared.sleep.lock().unwrap();
        self.shared.wake.notify_all();
    }

    /// Drives all streams on this thread until `future` is ready; None when the driver is closed.
    pub fn drive<F: Future>(&self, future: F) -> Option<F::Output> {
        let runtime = self.runtime.lock().unwrap().clone()?;
        let shared = &self.shared;
        shared.active.fetch_add(1, Ordering::SeqCst);
        if shared.caretaker_inside.load(Ordering::SeqCst) {
            shared.leave.notify_one();
        }
        let output = runtime.block_on(future);
        shared.calls.fetch_add(1, Ordering::Relaxed);
        shared.active.fetch_sub(1, Ordering::SeqCst);
        drop(runtime);
        Some(output)
    }

    /// Ends every task and connection at once. Whoever drives has to return first.
    pub fn close(&self) {
        let runtime = self.runtime.lock().unwrap().take();
        self.shared.closed.store(true, Ordering::SeqCst);
        self.shared.leave.notify_one();
        self.nudge();
        if let Some(caretaker) = self.caretaker.lock().unwrap().take() {
            let _ = caretaker.join();
        }
        if let Some(runtime) = runtime {
            while Arc::strong_count(&runtime) > 1 {
                std::thread::sleep(Duration::from_millis(1));
            }
            if let Some(runtime) = Arc::into_inner(runtime) {
                runtime.shutdown_background();
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.close();
    }
}

fn take_care(runtime: &Runtime, shared: &Shared, tick: &impl Fn()) {
    let mut seen = u64::MAX;
    while !shared.closed.load(Ordering::SeqCst) {
        let calls = shared.calls.load(Ordering::Relaxed);
        if calls != seen || shared.active.load(Ordering::SeqCst) > 0 {
            seen = calls;
            let guard = shared.sleep.lock().unwrap();
            if !shared.closed.load(Ordering::SeqCst) {
                let _ = shared.wake.wait_timeout(guard, IDLE).unwrap();
            }
        } else {
            runtime.block_on(be_inside(shared));
        }
        tick();
    }
}

async fn be_inside(shared: &Shared) {
    shared.caretaker_inside.store(true, Ordering::SeqCst);
    if shared.active.load(Ordering::SeqCst) == 0 && !shared.closed.load(Ordering::SeqCst) {
        let _ = tokio::time::timeout(LOOK, shared.leave.notified()).await;
    }
    shared.caretaker_inside.store(false, Ordering::SeqCst);
}

/// CLOCK_MONOTONIC in seconds, as Python's time.monotonic().
pub fn monotonic() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: clock_gettime writes a timespec and fails only for an unknown clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// The moment of a time of `monotonic`; at most some thirty years away.
pub fn instant(at: f64) -> tokio::time::Instant {
    let left = (at - monotonic()).clamp(0.0, 1e9);
    tokio::time::Instant::now() + Duration::from_secs_f64(left)
}
