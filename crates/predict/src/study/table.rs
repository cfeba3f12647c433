//! Comma-separated values (RFC 4180, without line breaks within cells).

use super::{Study, StudyError, StudyRow};

/// More workers, and more samples on one, than anybody has.
const COUNT_MAX: usize = 1 << 26;

/// See [`Study::parse`].
pub(super) fn parse(text: &str) -> Result<Study, StudyError> {
    let mut lines = text.trim_start_matches('\u{feff}').lines().zip(1..).filter_map(|(text, line)| {
        let text = text.trim();
        (!text.is_empty() && !text.starts_with('#')).then_some((line, text))
    });
    let (_, heading) = lines.next().ok_or(StudyError::Empty)?;
    let columns = split(heading);
    let places = Places::of(&columns)?;
    let rows = lines.map(|(line, text)| {
        let cells = split(text);
        if cells.len() != columns.len() {
            return Err(StudyError::Cells { line, found: cells.len(), expected: columns.len() });
        }
        places.row(line, cells, &columns)
    });
    let rows: Vec<StudyRow> = rows.collect::<Result<_, _>>()?;
    if rows.is_empty() { Err(StudyError::Empty) } else { Ok(Study { columns, rows }) }
}

/// The cells of a line. A quotation mark within quotation marks is written twice.
fn split(line: &str) -> Vec<String> {
    let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => cell.extend(letters.next()),
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(std::mem::take(&mut cell)),
            letter => cell.push(letter),
        }
    }
    cells.push(cell);
    cells.iter().map(|cell| cell.trim().to_owned()).collect()
}

/// Which column is what.
struct Places {
    model: usize,
    local_batch: usize,
    network: usize,
    method: usize,
    workers: usize,
    samples_per_s: Option<usize>,
    std_samples_per_s: Option<usize>,
    single_gpu_samples_per_s: Option<usize>,
    note: Option<usize>,
}

impl Places {
    fn of(columns: &[String]) -> Result<Places, StudyError> {
        let place = |name: &str| columns.iter().position(|column| column.eq_ignore_ascii_case(name));
        let needed = |column: &'static str| {
            place(column).ok_or_else(|| StudyError::Column { column, found: columns.join(", ") })
        };
        Ok(Places {
            model: needed("model")?,
            local_batch: needed("local_batch")?,
            network: needed("network")?,
            method: needed("method")?,
            workers: needed("workers")?,
            samples_per_s: place("samples_per_s"),
            std_samples_per_s: place("std_samples_per_s"),
            single_gpu_samples_per_s: place("single_gpu_samples_per_s"),
            note: place("note"),
        })
    }

    fn row(&self, line: usize, cells: Vec<String>, columns: &[String]) -> Result<StudyRow, StudyError> {
        let reader = Reader { line, cells: &cells, columns };
        Ok(StudyRow {
            line,
            model: reader.word(self.model)?,
            local_batch: reader.count(self.local_batch)?,
            network: reader.word(self.network)?,
            method: reader.word(self.method)?,
            workers: reader.count(self.workers)?,
            samples_per_s: reader.rate(self.samples_per_s, false)?,
            std_samples_per_s: reader.rate(self.std_samples_per_s, true)?,
            single_gpu_samples_per_s: reader.rate(self.single_gpu_samples_per_s, false)?,
            note: self.note.map_or_else(String::new, |place| cells[place].clone()),
            cells,
        })
    }
}

/// Reads the cells of a line.
struct Reader<'a> {
    line: usize,
    cells: &'a [String],
    columns: &'a [String],
}

impl Reader<'_> {
    fn word(&self, place: usize) -> Result<String, StudyError> {
        let word = &self.cells[place];
        if word.is_empty() { Err(self.wrong(place, "nothing")) } else { Ok(word.clone()) }
    }

    fn count(&self, place: usize) -> Result<usize, StudyError> {
        let count = self.cells[place].parse().ok().filter(|count| (1..=COUNT_MAX).contains(count));
        count.ok_or_else(|| self.wrong(place, "no whole number from 1 on"))
    }

    /// None where the cell is empty, or the column missing.
    fn rate(&self, place: Option<usize>, may_be_zero: bool) -> Result<Option<f64>, StudyError> {
        let Some(place) = place.filter(|&place| !self.cells[place].is_empty()) else { return Ok(None) };
        let good = |rate: &f64| rate.is_finite() && (*rate > 0.0 || may_be_zero && *rate == 0.0);
        let rate = self.cells[place].parse().ok().filter(good);
        rate.map(Some).ok_or_else(|| self.wrong(place, "no number of samples per second"))
    }

    fn wrong(&self, place: usize, problem: &'static str) -> StudyError {
        let (column, value) = (self.columns[place].clone(), self.cells[place].clone());
        StudyError::Cell { line: self.line, column, value, problem }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADING: &str = "Model,local_batch,network,method,WORKERS,samples_per_s,std_samples_per_s,note,mine";

    #[test]
    fn a_table_is_read_whatever_the_order_and_case_of_its_columns() {
        let text = format!("# a remark\n{HEADING}\n\nResNet-50,64,10GbE,BSP-A2A,8,1282.28,1.94,\"a, \"\"b\"\"\",7\n");
        let study = Study::parse(&text).unwrap();
        assert_eq!(study.columns[0], "Model");
        let row = &study.rows[0];
        assert_eq!((row.line, &*row.model, row.local_batch, row.workers), (4, "ResNet-50", 64, 8));
        assert_eq!((row.samples_per_s, row.std_samples_per_s), (Some(1282.28), Some(1.94)));
        assert_eq!((row.single_gpu_samples_per_s, &*row.note, &*row.cells[8]), (None, "a, \"b\"", "7"));
        let bare = Study::parse("workers,method,network,local_batch,model\r\n4,MG-WFBP,x,8,m\r\n").unwrap();
        assert_eq!((bare.rows[0].samples_per_s, bare.rows[0].workers), (None, 4));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let with = |row: &str| Study::parse(&format!("{HEADING}\n{row}")).unwrap_err().to_string();
        for (row, words) in [
            ("a,1,n,m,4,1,0,", "line 2 of the study has 8 cells, and the heading has 9"),
            ("a,1,n,m,0,1,0,,", "column `WORKERS`: `0` is no whole number from 1 on"),
            ("a,one,n,m,4,1,0,,", "column `local_batch`: `one` is no whole number"),
            ("a,1,n,m,4,0,0,,", "column `samples_per_s`: `0` is no number of samples per second"),
            ("a,1,n,m,4,nan,0,,", "`nan` is no number of samples per second"),
            ("a,1,n,m,4,1,-1,,", "column `std_samples_per_s`: `-1` is no number"),
            (",1,n,m,4,1,0,,", "column `Model`: `` is nothing"),
        ] {
            assert!(with(row).contains(words), "{row}: {}", with(row));
        }
        assert_eq!(Study::parse("\n# nothing\n"), Err(StudyError::Empty));
        assert_eq!(Study::parse(HEADING), Err(StudyError::Empty));
        let error = Study::parse("model,network\na,b").unwrap_err().to_string();
        assert!(error.contains("no column `local_batch`; it has model, network"), "{error}");
    }
}
