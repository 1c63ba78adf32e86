//! A congestion control that keeps a short queue at the bottleneck and takes random loss for what it is.
//!
//! Once in a round trip it compares the shortest round trip of that time with the shortest of the last minutes: the
//! difference is the queue. Below its target the window grows by a step, which is the same for flows that grow at the same
//! time; above it, a part of the window is given up, so that flows of this kind converge to equal shares. A loss counts
//! only where there is more of it than while the queue is short: the queue is full then, and the target becomes a part of
//! its length. Where the queue stays although the window shrinks, somebody else fills it: the target rises, but stays well
//! below that of libtorrent's uTP, which would give all it has to whoever holds the queue there. If the queue is longer even
//! so, the window stays what it is; if it is much longer, it grows by some packets in each round trip, as TCP's does, until
//! packets are lost. At the start, the window doubles until the queue is longer than it was; where others fill it already,
//! it may become so much longer that there is room for us.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_proto::congestion::{Controller, ControllerFactory};
use quinn_proto::RttEstimator;

/// How long the queue may be, in seconds.
const TARGET_S: f64 = 0.015;
/// Half of what libtorrent's uTP allows (100 ms).
const MOST_TARGET_S: f64 = 0.05;
/// Where others fill the queue at the start, so many targets are added to it, so that there is room for us.
const BESIDE_OTHERS: f64 = 3.0;
/// A queue that uTP would not hold.
const TCP_QUEUE_S: f64 = 0.15;
const LEAST_TARGET_S: f64 = 0.003;
const LEAST_WINDOW_PACKETS: f64 = 4.0;
/// More than any connection may have on its way (quic.rs).
const MOST_WINDOW_BYTES: f64 = (64 << 20) as f64;
const INITIAL_WINDOW_PACKETS: f64 = 32.0;
const STEP_PACKETS: f64 = 4.0;
const MOST_STEP_PACKETS: f64 = 32.0;
/// After so many round trips without a queue the step may be any part of the window.
const IDLE_ROUNDS: u32 = 8;
/// The part of the window that is given up at a time.
const LEAST_CUT: f64 = 0.05;
const MOST_CUT: f64 = 0.15;
/// Loss beyond what is random, as a share of what was sent, that means a full queue.
const CONGESTED_LOSS: f64 = 0.01;
/// Loss that is never taken for random.
const MOST_RANDOM_LOSS: f64 = 0.1;
/// After so many cuts without effect, somebody else fills the queue.
const PATIENCE: u32 = 3;
const BASE_MEMORY: Duration = Duration::from_secs(60);

/// What was seen since the round trip began.
#[derive(Clone)]
struct Round {
    start: Instant,
    shortest_s: f64,
    acked: f64,
    lost: f64,
    is_limited_by_window: bool,
}

impl Round {
    fn new(start: Instant) -> Self {
        Self { start, shortest_s: f64::MAX, acked: 0.0, lost: 0.0, is_limited_by_window: false }
    }
}

/// The congestion controller of one QUIC connection.
#[derive(Clone)]
pub struct DelayTarget {
    /// Bytes.
    packet: f64,
    window: f64,
    is_starting: bool,
    /// Bytes a second, the most of any round trip of the start.
    best_rate: f64,
    rounds_without_growth: u32,
    /// The queue while we sent next to nothing.
    others_s: f64,
    target_s: f64,
    /// The share of packets that is lost while the queue is short.
    random_loss: f64,
    step: f64,
    idle_rounds: u32,
    /// How often the window was cut since it last grew.
    cuts: u32,
    /// The window was cut in the round before: this one still shows the queue of before.
    is_settling: bool,
    /// The shortest round trip of this span of BASE_MEMORY and of the one before.
    base_s: [f64; 2],
    base_since: Instant,
    round: Round,
}

impl DelayTarget {
    fn new(now: Instant, packet_bytes: u16) -> Self {
        let packet = f64::from(packet_bytes);
        Self {
            packet,
            window: INITIAL_WINDOW_PACKETS * packet,
            is_starting: true,
            best_rate: 0.0,
            rounds_without_growth: 0,
            others_s: 0.0,
            target_s: TARGET_S,
            random_loss: 0.0,
            step: STEP_PACKETS * packet,
            idle_rounds: 0,
            cuts: 0,
            is_settling: false,
            base_s: [f64::MAX; 2],
            base_since: now,
            round: Round::new(now),
        }
    }

    fn end_round(&mut self, now: Instant) {
        let round = std::mem::replace(&mut self.round, Round::new(now));
        if now - self.base_since > BASE_MEMORY {
            self.base_s = [f64::MAX, self.base_s[0]];
            self.base_since = now;
        }
        self.base_s[0] = self.base_s[0].min(round.shortest_s);
        let base_s = self.base_s[0].min(self.base_s[1]);
        let queue_s = round.shortest_s - base_s;
        let loss = round.lost / (round.lost + round.acked).max(1.0);
        let rate = round.acked / (now - round.start).as_secs_f64().max(1e-6);
        if self.is_starting {
            self.start_up(&round, queue_s, loss, rate, base_s);
        } else {
            self.steer(&round, queue_s, loss, base_s);
        }
        if queue_s < self.target_s / 2.0 && loss < MOST_RANDOM_LOSS {
            self.random_loss += (loss - self.random_loss) / 8.0;
        }
        self.window = self.window.clamp(LEAST_WINDOW_PACKETS * self.packet, MOST_WINDOW_BYTES);
    }

    /// Leave the start, in which the window doubles, once the queue or the rate says that the way is full.
    fn start_up(&mut self, round: &Round, queue_s: f64, loss: f64, rate: f64, base_s: f64) {
        if rate > self.best_rate * 1.2 {
            self.rounds_without_growth = 0;
        } else if round.is_limited_by_window {
            self.rounds_without_growth += 1;
        }
        self.best_rate = self.best_rate.max(rate);
        if !round.is_limited_by_window {
            self.others_s = queue_s;
        }
        let has_others = self.others_s > self.target_s;
        let own_s = self.target_s * if has_others { BESIDE_OTHERS } else { 1.0 };
        if queue_s > self.others_s + own_s || self.rounds_without_growth >= 3 || loss > MOST_RANDOM_LOSS {
            self.is_starting = false;
            self.window = self.window.min(self.best_rate * (base_s + self.others_s + own_s));
            if has_others {
                (self.target_s, self.cuts) = (MOST_TARGET_S, PATIENCE);
            }
        }
    }

    fn steer(&mut self, round: &Round, queue_s: f64, loss: f64, base_s: f64) {
        if std::mem::take(&mut self.is_settling) {
            return;
        }
        let is_full = loss > self.random_loss + CONGESTED_LOSS && queue_s > LEAST_TARGET_S || loss > MOST_RANDOM_LOSS;
        if is_full {
            self.target_s = (queue_s * 0.7).clamp(LEAST_TARGET_S, self.target_s.max(LEAST_TARGET_S));
        } else if self.target_s < TARGET_S {
            self.target_s *= 1.01;
        }
        if is_full || queue_s > self.target_s {
            self.give_way(queue_s, is_full, base_s);
        } else {
            self.grow(queue_s, round.is_limited_by_window);
        }
    }

    /// Shrink the window; where that has not helped, be content with a longer queue.
    fn give_way(&mut self, queue_s: f64, is_full: bool, base_s: f64) {
        if self.cuts >= PATIENCE && !is_full {
            if self.target_s >= MOST_TARGET_S {
                if queue_s > TCP_QUEUE_S {
                    self.window += STEP_PACKETS * self.packet;
                }
                return;
            }
            self.target_s = (self.target_s * 1.5).min(MOST_TARGET_S);
        }
        self.window *= 1.0 - (queue_s / (base_s + queue_s).max(1e-6)).clamp(LEAST_CUT, MOST_CUT);
        (self.is_settling, self.step, self.idle_rounds) = (true, STEP_PACKETS * self.packet, 0);
        self.cuts += 1;
    }

    /// Grow the window if it was what held the sender back.
    fn grow(&mut self, queue_s: f64, is_limited_by_window: bool) {
        self.cuts = 0;
        if self.target_s > TARGET_S && queue_s < self.target_s / 2.0 {
            self.target_s = (self.target_s * 0.9).max(TARGET_S);
        }
        if !is_limited_by_window {
            return;
        }
        self.window += self.step;
        self.idle_rounds = if queue_s < self.target_s / 4.0 { self.idle_rounds + 1 } else { 0 };
        let most = if self.idle_rounds > IDLE_ROUNDS { self.window / 8.0 } else { MOST_STEP_PACKETS * self.packet };
        self.step = (self.step * 1.5).min(most);
    }
}

impl Controller for DelayTarget {
    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, _rtt: &RttEstimator) {
        self.round.acked += bytes as f64;
        self.round.shortest_s = self.round.shortest_s.min((now - sent).as_secs_f64());
        self.round.is_limited_by_window |= !app_limited;
        if self.is_starting && !app_limited {
            self.window += bytes as f64;
        }
        if sent >= self.round.start {
            self.end_round(now);
        }
    }

    fn on_congestion_event(&mut self, _now: Instant, _sent: Instant, is_persistent_congestion: bool, lost_bytes: u64) {
        self.round.lost += lost_bytes as f64;
        if is_persistent_congestion {
            self.window = LEAST_WINDOW_PACKETS * self.packet;
            self.is_starting = true;
            self.best_rate = 0.0;
            self.rounds_without_growth = 0;
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.packet = f64::from(new_mtu);
    }

    fn window(&self) -> u64 {
        self.window as u64
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        (INITIAL_WINDOW_PACKETS * self.packet) as u64
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Creates a `DelayTarget` for each QUIC connection.
pub struct DelayTargetConfig;

impl ControllerFactory for DelayTargetConfig {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(DelayTarget::new(now, current_mtu))
    }
}
