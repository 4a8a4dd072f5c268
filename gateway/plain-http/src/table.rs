//! The table of a program's metrics. Registration, the reference page and the tests come from it.
//!
//! Names follow <https://prometheus.io/docs/practices/naming/>: a name ends with its unit, and a counter's with `_total`.

use std::borrow::Cow;
use std::iter::zip;
use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// Upper bounds of a histogram's buckets, in seconds: from an fsync of a fast disk to the longest wait of a node.
const BUCKETS: [f64; 14] = [
    0.0002, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
];

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Name of a sample: a histogram's have `_bucket`, `_sum` and `_count` behind it.
    pub name: &'static str,
    pub kind: MetricKind,
    pub labels: &'static [&'static str],
    /// Meaning, without a full stop.
    pub help: &'static str,
}

/// Type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

impl MetricKind {
    /// Returns the word of the exposition formats.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

impl Metric {
    /// Returns the name without `_total`: that of the family in OpenMetrics.
    fn family(&self) -> &'static str {
        self.name.strip_suffix("_total").unwrap_or(self.name)
    }

    /// Returns the unit, which is a part of the name.
    #[must_use]
    pub fn unit(&self) -> Option<&'static str> {
        let word = self.family().rsplit('_').next()?;
        ["seconds", "bytes"].into_iter().find(|unit| *unit == word)
    }

    fn register(&self, registry: &mut Registry, metric: impl prometheus_client::registry::Metric) {
        match self.unit() {
            Some(unit) => {
                let base = self.family().trim_end_matches(unit).trim_end_matches('_');
                let unit = if unit == "bytes" { Unit::Bytes } else { Unit::Seconds };
                registry.register_with_unit(base, self.help, unit, metric);
            }
            None => registry.register(self.family(), self.help, metric),
        }
    }
}

/// A metric without labels, or the part of one that has these.
pub trait Instrument: prometheus_client::registry::Metric + prometheus_client::metrics::TypedMetric + Clone {
    const KIND: MetricKind;

    /// Returns an instrument that counts nothing yet.
    fn begin() -> Self;
}

impl Instrument for Counter {
    const KIND: MetricKind = MetricKind::Counter;

    fn begin() -> Self {
        Self::default()
    }
}

impl Instrument for Counter<f64, AtomicU64> {
    const KIND: MetricKind = MetricKind::Counter;

    fn begin() -> Self {
        Self::default()
    }
}

impl Instrument for Gauge {
    const KIND: MetricKind = MetricKind::Gauge;

    fn begin() -> Self {
        Self::default()
    }
}

impl Instrument for Gauge<f64, AtomicU64> {
    const KIND: MetricKind = MetricKind::Gauge;

    fn begin() -> Self {
        Self::default()
    }
}

impl Instrument for Histogram {
    const KIND: MetricKind = MetricKind::Histogram;

    fn begin() -> Self {
        Self::new(BUCKETS)
    }
}

/// Type of a table's row, with its number of labels.
pub trait MetricRow {
    const KIND: MetricKind;
    const LABELS: usize;

    fn register(metric: &Metric, registry: &mut Registry) -> Self;
}

impl<T: Instrument> MetricRow for T {
    const KIND: MetricKind = T::KIND;
    const LABELS: usize = 0;

    fn register(metric: &Metric, registry: &mut Registry) -> Self {
        let instrument = T::begin();
        metric.register(registry, instrument.clone());
        instrument
    }
}

/// Labels of a series, with their values.
type LabelSet<const N: usize> = [(&'static str, Cow<'static, str>); N];

/// A metric with `N` labels.
#[derive(Debug, Clone)]
pub struct Series<T, const N: usize> {
    names: [&'static str; N],
    family: Family<LabelSet<N>, T, fn() -> T>,
}

impl<T: Instrument, const N: usize> Series<T, N> {
    /// Returns the series with these values of the labels; it exists from now on. The values must be few: each set of them is kept.
    pub fn with(&self, values: [Cow<'static, str>; N]) -> T {
        self.family.get_or_create_owned(&self.labels(values))
    }

    /// Removes the series with these values of the labels.
    pub fn remove(&self, values: [Cow<'static, str>; N]) {
        self.family.remove(&self.labels(values));
    }

    /// Removes the series of all values.
    pub fn clear(&self) {
        self.family.clear();
    }

    fn labels(&self, values: [Cow<'static, str>; N]) -> LabelSet<N> {
        let mut set = self.names.map(|name| (name, Cow::Borrowed("")));
        zip(&mut set, values).for_each(|((_, place), value)| *place = value);
        set
    }
}

impl<T: Instrument, const N: usize> MetricRow for Series<T, N> {
    const KIND: MetricKind = T::KIND;
    const LABELS: usize = N;

    fn register(metric: &Metric, registry: &mut Registry) -> Self {
        let mut names = [""; N];
        zip(&mut names, metric.labels).for_each(|(place, name)| *place = name);
        let begin: fn() -> T = T::begin;
        let family = Family::new_with_constructor(begin);
        metric.register(registry, family.clone());
        Self { names, family }
    }
}

/// Defines the table of a program's metrics: a structure with a member for each row, which has the type of the member, the name, the
/// labels and the meaning. `TABLE` of the structure has all rows, and `register` registers them.
#[macro_export]
macro_rules! metrics {
    (
        $(#[$about:meta])*
        $vis:vis struct $name:ident {
            $($member:ident: $type:ty = $metric:literal, [$($label:literal),*], $help:literal;)*
        }
    ) => {
        $(#[$about])*
        #[derive(Debug)]
        $vis struct $name {
            $($vis $member: $type,)*
        }

        impl $name {
            /// All rows, in the order of the exposition.
            $vis const TABLE: &'static [$crate::Metric] = &[$($crate::metric!($type, $metric, [$($label),*], $help),)*];

            /// Registers all metrics, in the order of the table.
            $vis fn register(registry: &mut $crate::Registry) -> Self {
                Self {
                    $($member: $crate::MetricRow::register(&$crate::metric!($type, $metric, [$($label),*], $help), registry),)*
                }
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! metric {
    ($type:ty, $metric:literal, [$($label:literal),*], $help:literal) => {
        $crate::Metric {
            name: $metric,
            kind: <$type as $crate::MetricRow>::KIND,
            labels: {
                const LABELS: &[&str] = &[$($label),*];
                const { assert!(LABELS.len() == <$type as $crate::MetricRow>::LABELS, "the type has another number of labels") };
                LABELS
            },
            help: $help,
        }
    };
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    crate::metrics! {
        struct Few {
            served: Series<Counter, 2> = "few_served_total", ["pool", "kind"], "Configs";
            took: Histogram = "few_took_seconds", [], "Duration";
            busy: Counter<f64, AtomicU64> = "few_busy_seconds_total", [], "Work";
            size: Gauge = "few_size_bytes", [], "Size";
            broken: Series<Gauge, 1> = "few_broken", ["pool"], "1 while broken";
        }
    }

    #[test]
    fn exposes_the_rows_of_the_table() {
        let mut registry = Registry::default();
        let few = Few::register(&mut registry);
        few.served.with(["a".into(), "b".to_owned().into()]).inc();
        few.served.with(["a".to_owned().into(), "b".into()]).inc();
        few.took.observe(0.0004);
        few.busy.inc_by(1.5);
        few.size.set(7);
        few.broken.with(["a".into()]).set(1);
        few.broken.with(["c".into()]).set(1);
        few.broken.remove(["c".into()]);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "# HELP few_served Configs.",
            "# TYPE few_served counter",
            r#"few_served_total{pool="a",kind="b"} 2"#,
            "# TYPE few_took_seconds histogram",
            "# UNIT few_took_seconds seconds",
            r#"few_took_seconds_bucket{le="0.0002"} 0"#,
            r#"few_took_seconds_bucket{le="0.0005"} 1"#,
            "# UNIT few_busy_seconds seconds",
            "few_busy_seconds_total 1.5",
            "# UNIT few_size_bytes bytes",
            "few_size_bytes 7",
            r#"few_broken{pool="a"} 1"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in:\n{text}");
        }
        assert!(!text.contains(r#"pool="c""#), "{text}");
        few.broken.clear();
        let row = |name, kind, labels, help| Metric { name, kind, labels, help };
        assert_eq!(
            Few::TABLE[0],
            row("few_served_total", MetricKind::Counter, &["pool", "kind"], "Configs")
        );
        assert_eq!(
            Few::TABLE.iter().map(Metric::unit).collect::<Vec<_>>(),
            [None, Some("seconds"), Some("seconds"), Some("bytes"), None]
        );
    }
}
