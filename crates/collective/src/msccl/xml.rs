//! XML as a flat list of elements: what of it MSCCL uses.

use quick_xml::Reader;
use quick_xml::escape::unescape;
use quick_xml::events::{BytesStart, Event};

use super::{Fault, ReadError};

/// Reads elements one by one. Nothing recurses, so nesting costs nothing but the names of the open elements.
pub(super) struct Elements<'a> {
    reader: Reader<&'a [u8]>,
    /// Where each line ends.
    line_ends: Vec<usize>,
}

/// What comes next.
pub(super) enum Token {
    Open(Element),
    Close,
    End,
}

/// The beginning of an element.
pub(super) struct Element {
    pub name: String,
    pub line: usize,
    attributes: Vec<(String, String)>,
}

impl<'a> Elements<'a> {
    pub fn new(text: &'a str) -> Self {
        let mut reader = Reader::from_str(text);
        // One kind of element only: every opening has its closing.
        reader.config_mut().expand_empty_elements = true;
        let line_ends = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n').map(|(at, _)| at).collect();
        Elements { reader, line_ends }
    }

    /// The next opening, closing or end.
    pub fn next(&mut self) -> Result<Token, ReadError> {
        loop {
            let at = self.reader.buffer_position();
            let event = match self.reader.read_event() {
                Ok(event) => event,
                Err(error) => return Err(self.broken(self.reader.error_position(), error.to_string())),
            };
            match event {
                Event::Start(start) | Event::Empty(start) => return self.element(at, &start).map(Token::Open),
                Event::End(_) => return Ok(Token::Close),
                Event::Eof => return Ok(Token::End),
                Event::Text(text) if text.bytes().all(|byte| byte.is_ascii_whitespace()) => {}
                Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
                Event::Text(_) | Event::CData(_) | Event::GeneralRef(_) => {
                    return Err(self.broken(at, "there is text between the elements".into()));
                }
                Event::DocType(_) => return Err(self.broken(at, "document types are not taken".into())),
            }
        }
    }

    /// What is wrong at this byte.
    pub fn broken(&self, at: u64, what: String) -> ReadError {
        ReadError { line: self.line(at), fault: Fault::Xml(what) }
    }

    /// The line that the reader has come to.
    pub fn here(&self) -> u64 {
        self.reader.buffer_position()
    }

    fn line(&self, at: u64) -> usize {
        1 + self.line_ends.partition_point(|&end| (end as u64) < at)
    }

    fn element(&self, at: u64, start: &BytesStart) -> Result<Element, ReadError> {
        let name = start.name().as_ref().to_owned();
        let mut attributes = Vec::new();
        for attribute in start.attributes() {
            let attribute = attribute.map_err(|error| self.broken(at, error.to_string()))?;
            let key = attribute.key.as_ref().to_owned();
            let value = unescape(&attribute.value).map_err(|error| self.broken(at, error.to_string()))?;
            attributes.push((key, value.into_owned()));
        }
        Ok(Element { name, line: self.line(at), attributes })
    }
}

impl Element {
    /// The value of an attribute that must be there.
    pub fn text(&self, attribute: &'static str) -> Result<&str, ReadError> {
        let found = self.attributes.iter().find(|(name, _)| name == attribute);
        let missing = || self.fault(Fault::Missing { element: self.name.clone(), attribute });
        found.map(|(_, value)| value.as_str()).ok_or_else(missing)
    }

    /// A whole number between these.
    pub fn number(&self, attribute: &'static str, (least, most): (i32, i32)) -> Result<i32, ReadError> {
        let text = self.text(attribute)?;
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| self.value(attribute, text, format!("a number from {least} to {most}")))
    }

    /// A number of bytes, which may be left out.
    pub fn bytes(&self, attribute: &'static str) -> Result<Option<u64>, ReadError> {
        let Some((_, text)) = self.attributes.iter().find(|(name, _)| name == attribute) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| self.value(attribute, text, "a number of bytes".into()))
    }

    /// One of these words.
    pub fn word<T: Copy>(&self, attribute: &'static str, words: &[(&str, T)]) -> Result<T, ReadError> {
        let text = self.text(attribute)?;
        let known = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
        let found = words.iter().find(|(word, _)| *word == text);
        found.map(|&(_, meaning)| meaning).ok_or_else(|| self.value(attribute, text, format!("one of {}", known())))
    }

    /// An attribute cannot have this value.
    pub fn value(&self, attribute: &'static str, value: &str, expected: String) -> ReadError {
        self.fault(value_fault(attribute, value, expected))
    }

    /// The element stands where something else should.
    pub fn misplaced(&self, expected: &'static str) -> ReadError {
        self.fault(Fault::Element { found: self.name.clone(), expected })
    }

    pub fn fault(&self, fault: Fault) -> ReadError {
        ReadError { line: self.line, fault }
    }
}

/// An attribute cannot have this value, of which a message shows no more than a line.
pub(super) fn value_fault(attribute: &'static str, value: &str, expected: String) -> Fault {
    const SHOWN: usize = 60;
    let mut shown: String = value.chars().take(SHOWN).collect();
    if value.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    Fault::Value { attribute, value: shown, expected }
}
