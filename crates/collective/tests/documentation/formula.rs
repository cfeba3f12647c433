//! Evaluates the formulas of `docs/algorithms.md`, as a mathematician would write them.

use std::iter::Peekable;
use std::str::Chars;

/// What the letters in a formula stand for, without a prime and with one.
pub type Letters<'a> = &'a dyn Fn(char, bool) -> Option<f64>;

/// The value of a formula.
pub fn evaluate(formula: &str, letters: Letters) -> Result<f64, String> {
    let mut parser = Parser { rest: formula.chars().peekable(), letters };
    let value = parser.sum()?;
    match parser.next_symbol() {
        None => Ok(value),
        Some(symbol) => Err(format!("`{formula}`: unexpected `{symbol}`")),
    }
}

struct Parser<'a> {
    rest: Peekable<Chars<'a>>,
    letters: Letters<'a>,
}

impl Parser<'_> {
    fn next_symbol(&mut self) -> Option<char> {
        while self.rest.next_if(|symbol| symbol.is_whitespace()).is_some() {}
        self.rest.peek().copied()
    }

    fn take(&mut self, symbol: char) -> bool {
        let found = self.next_symbol() == Some(symbol);
        if found {
            self.rest.next();
        }
        found
    }

    fn expect(&mut self, symbol: char) -> Result<(), String> {
        if self.take(symbol) { Ok(()) } else { Err(format!("`{symbol}` is missing")) }
    }

    fn sum(&mut self) -> Result<f64, String> {
        let mut value = self.product()?;
        loop {
            if self.take('+') {
                value += self.product()?;
            } else if self.take('−') {
                value -= self.product()?;
            } else {
                return Ok(value);
            }
        }
    }

    /// Factors side by side are multiplied; a division goes on from the left.
    fn product(&mut self) -> Result<f64, String> {
        let mut value = self.power()?;
        loop {
            if self.take('·') {
                value *= self.power()?;
            } else if self.take('/') {
                value /= self.power()?;
            } else if self.next_symbol().is_some_and(|symbol| symbol.is_alphanumeric() || "([⌈⌊".contains(symbol)) {
                value *= self.power()?;
            } else {
                return Ok(value);
            }
        }
    }

    fn power(&mut self) -> Result<f64, String> {
        let base = self.factor()?;
        if self.take('^') { Ok(base.powf(self.factor()?)) } else { Ok(base) }
    }

    fn factor(&mut self) -> Result<f64, String> {
        let symbol = self.next_symbol().ok_or("the formula ends too early")?;
        if symbol.is_ascii_digit() {
            return self.number();
        }
        self.rest.next();
        match symbol {
            '(' => self.enclosed(')'),
            '⌈' => Ok(round_off(self.enclosed('⌉')?).ceil()),
            '⌊' => Ok(round_off(self.enclosed('⌋')?).floor()),
            '[' => {
                let left = self.sum()?;
                self.expect('>')?;
                Ok(f64::from(left > self.enclosed(']')?))
            }
            'l' => {
                self.expect('g')?;
                Ok(self.factor()?.log2())
            }
            'm' => {
                self.expect('a')?;
                self.expect('x')?;
                self.expect('(')?;
                let left = self.sum()?;
                self.expect(',')?;
                Ok(left.max(self.enclosed(')')?))
            }
            letter => {
                let primed = self.rest.next_if_eq(&'′').is_some();
                (self.letters)(letter, primed).ok_or_else(|| format!("`{letter}` means nothing"))
            }
        }
    }

    fn enclosed(&mut self, end: char) -> Result<f64, String> {
        let value = self.sum()?;
        self.expect(end)?;
        Ok(value)
    }

    fn number(&mut self) -> Result<f64, String> {
        let mut digits = String::new();
        while let Some(digit) = self.rest.next_if(char::is_ascii_digit) {
            digits.push(digit);
        }
        digits.parse().map_err(|_| format!("`{digits}` is no number"))
    }
}

/// A logarithm of a power of two may miss the integer by a rounding error.
fn round_off(value: f64) -> f64 {
    if (value - value.round()).abs() < 1e-9 { value.round() } else { value }
}
