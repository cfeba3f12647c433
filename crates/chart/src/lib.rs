//! Charts as SVG that need nothing from outside and are readable on light and dark ground: what reports and documents
//! share. Pure: a chart is a function of its numbers.
//!
//! ```
//! use paceline_chart::{BarRow, Block, RowChart, Segment};
//!
//! let bar = Segment { length: 1900.0, class: "wfbp", hatched: false, title: "wfbp-a2a: 1900 samples/s".into() };
//! let row = BarRow {
//!     label: "wfbp-a2a".into(),
//!     best: true,
//!     segments: vec![bar],
//!     error: Some(12.0),
//!     expected: Some(1880.0),
//!     value: "1900 ± 12".into(),
//! };
//! let block = Block { title: "8 workers".into(), subtitle: String::new(), rows: vec![row], reference: None };
//! let svg = RowChart { max: 2000.0, blocks: vec![block] }.draw(640.0).alone("Throughput", "");
//! assert!(svg.starts_with("<svg") && svg.contains("1900 ± 12"));
//! ```

#![forbid(unsafe_code)]

mod row_chart;
mod svg;

pub use row_chart::{BarRow, Block, NARROW, RowChart, Segment, WIDE};
pub use svg::{STYLE, Svg};
