//! Which congestion control carries streams over long and lossy ways, and what it leaves to a neighbour's uTP.
//!
//! cargo run --release --example congestion [-- CONTROLLER|MB/S...]
//!
//! A simulation: quinn-proto at both ends, time as an argument, a bottleneck (of 50 MB/s) with a queue each way, a delay and
//! random loss each way. Each row shows 8 streams in one circuit, 8 circuits of one stream, one uTP connection, and that
//! beside 8 streams in one circuit; then how long a packet waited in the queue on average. Jain's index is 1 where all
//! shares are the same. CPU is that of both ends and the simulation together.

mod link;
mod quic;
mod traffic;
mod utp;

use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::time::{clock_gettime, ClockId};
use packet_engine::streams::delay_target::DelayTargetConfig;
use quinn_proto::congestion::{BbrConfig, CubicConfig, NewRenoConfig};

use link::Path;
use quic::{Circuit, Controller};
use traffic::{Flow, Outcome, Traffic};
use utp::Utp;

const RATE_MB_S: f64 = 50.0;
const LEAST_MB_S: f64 = 0.1;
const MOST_MB_S: f64 = 1000.0;
const STREAMS: usize = 8;
const CIRCUITS: usize = 8;
const WARM_UP: Duration = Duration::from_secs(10);
const MEASURED: Duration = Duration::from_secs(10);
const CONTROLLERS: [&str; 4] = ["delay-target", "bbr", "cubic", "newreno"];
const QUEUES_MS: [u64; 3] = [10, 50, 200];
/// Delays in milliseconds, and the share of packets that is lost.
const WAYS: [(u64, f64); 9] =
    [(0, 0.0), (0, 0.01), (50, 0.0), (50, 0.01), (100, 0.0), (100, 0.01), (100, 0.03), (200, 0.0), (200, 0.01)];
const HEADINGS: [&str; 13] = [
    "controller",
    "queue, ms",
    "delay, ms",
    "loss",
    "8 streams, MB/s",
    "CPU, s/GB",
    "added, ms",
    "Jain",
    "8 circuits, MB/s, added ms",
    "Jain",
    "uTP, MB/s",
    "8 streams + uTP, MB/s",
    "added, ms",
];

fn controller(name: &str) -> Outcome<Controller> {
    Ok(match name {
        "delay-target" => Arc::new(DelayTargetConfig),
        "bbr" => Arc::new(BbrConfig::default()),
        "cubic" => Arc::new(CubicConfig::default()),
        "newreno" => Arc::new(NewRenoConfig::default()),
        _ => return Err(format!("there is no controller {name}; there are {}", CONTROLLERS.join(", ")).into()),
    })
}

struct Measured {
    /// Megabytes a second of each flow.
    speeds: Vec<f64>,
    streams: Vec<Vec<u64>>,
    added_ms: f64,
    cpu_s_per_gb: f64,
}

impl Measured {
    fn speed(&self) -> f64 {
        self.speeds.iter().sum()
    }
}

fn cpu_s() -> Outcome<f64> {
    Ok(Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?).as_secs_f64())
}

fn measure(path: Path, start: Instant, flows: Vec<Box<dyn Flow>>) -> Outcome<Measured> {
    let mut traffic = Traffic::new(start, path, flows);
    traffic.run(WARM_UP)?;
    let before_s = cpu_s()?;
    let (streams, added_ms) = traffic.run(MEASURED)?;
    let speeds: Vec<f64> =
        streams.iter().map(|flow| flow.iter().sum::<u64>() as f64 / 1e6 / MEASURED.as_secs_f64()).collect();
    let gigabytes = speeds.iter().sum::<f64>() * MEASURED.as_secs_f64() / 1e3;
    Ok(Measured { speeds, streams, added_ms, cpu_s_per_gb: (cpu_s()? - before_s) / gigabytes })
}

/// Jain's index of how even these shares are: 1 where all are the same.
fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|share| *share as f64).sum();
    let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
    sum * sum / (shares.len() as f64 * squares)
}

fn row(name: &str, path: Path) -> Outcome<()> {
    let (start, controller) = (Instant::now(), controller(name)?);
    let circuit =
        |streams| Circuit::open(start, &controller, streams).map(|circuit| Box::new(circuit) as Box<dyn Flow>);
    let alone = measure(path, start, vec![circuit(STREAMS)?])?;
    let several = measure(path, start, (0..CIRCUITS).map(|_| circuit(1)).collect::<Outcome<_>>()?)?;
    let utp_alone = measure(path, start, vec![Box::new(Utp::new(start))])?;
    let beside = measure(path, start, vec![circuit(STREAMS)?, Box::new(Utp::new(start))])?;
    let [mine, utp] = beside.speeds.as_slice() else { return Err("a flow is missing".into()) };
    println!(
        "| {name} | {} | {} | {:.1} % | {:.1} | {:.1} | {:.1} | {:.2} | {:.1}, {:.1} | {:.2} | {:.1} | {mine:.1} + {utp:.1} | {:.1} |",
        path.queue.as_millis(),
        path.delay.as_millis(),
        path.loss * 100.0,
        alone.speed(),
        alone.cpu_s_per_gb,
        alone.added_ms,
        jain(&alone.streams.concat()),
        several.speed(),
        several.added_ms,
        jain(&several.streams.concat()),
        utp_alone.speed(),
        beside.added_ms,
    );
    Ok(())
}

fn main() -> Outcome<()> {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let (rates, named): (Vec<&str>, Vec<&str>) =
        asked.iter().map(String::as_str).partition(|word| word.parse::<f64>().is_ok());
    let rate_mb_s = match rates.as_slice() {
        [] => RATE_MB_S,
        [rate] => rate.parse()?,
        _ => return Err("give one number of MB/s".into()),
    };
    if !(LEAST_MB_S..=MOST_MB_S).contains(&rate_mb_s) {
        return Err(format!("the rate is {LEAST_MB_S} to {MOST_MB_S} MB/s").into());
    }
    let names = if named.is_empty() { CONTROLLERS.to_vec() } else { named };
    for name in &names {
        controller(name)?;
    }
    println!("| {} |", HEADINGS.join(" | "));
    println!("|{}", " --- |".repeat(HEADINGS.len()));
    for name in names {
        for queue_ms in QUEUES_MS {
            for (delay_ms, loss) in WAYS {
                let (queue, delay) = (Duration::from_millis(queue_ms), Duration::from_millis(delay_ms));
                row(name, Path { rate: rate_mb_s * 1e6, queue, delay, loss })?;
            }
        }
    }
    Ok(())
}
