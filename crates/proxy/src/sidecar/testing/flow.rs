//! A response on its way through one sidecar, as the editors handle it: head, marks in the body, end.

use super::{Leg, Lines, Passage, Response, act_on, edited, fields};
use crate::exchange::{Act, Closed, Interceptor, Mark, Part, Refusal, ResponseHead, Resume, Tail, Verdict};

/// Where a response stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Head,
    Body,
    End,
}

/// A response, what has left of it, and what the sidecar wants to be asked.
#[derive(Debug)]
pub(super) struct Flow {
    response: Response,
    at: At,
    /// The head as it left.
    head: Option<Lines>,
    /// Body bytes that have left.
    pub(super) written: usize,
    /// Places still to be reached, the next one last.
    marks: Vec<(usize, Mark)>,
    kept_back: bool,
    counts: bool,
}

impl Flow {
    pub(super) fn new(response: Response) -> Self {
        let (head, written, marks) = (None, 0, Vec::new());
        Flow { response, at: At::Head, head, written, marks, kept_back: false, counts: false }
    }

    fn place(&self, mark: Mark) -> Option<usize> {
        match mark {
            Mark::Message(n) => self.response.message_starts().get(n as usize - 1).copied(),
            Mark::Bytes(n) => usize::try_from(n).ok().filter(|n| *n < self.response.body.len()),
        }
    }

    /// Go on until the sidecar keeps or takes the response, or it is through. `refuse` is what the next act meets.
    pub(super) fn run(
        &mut self,
        points: &mut dyn Interceptor,
        leg: &Leg,
        refuse: &mut Option<Refusal>,
        resume: Option<Resume>,
    ) -> Passage<Response> {
        let mut verdict = match resume {
            Some(Resume::Act(act)) => Verdict::Act(act),
            Some(_) => Verdict::Pass,
            None => self.head_comes(points, leg),
        };
        loop {
            match verdict {
                Verdict::Park => return Passage::Kept,
                Verdict::Act(act) => match refuse.take().or_else(|| self.is_too_late(&act)) {
                    None => return act_on(points, leg, act),
                    Some(why) => {
                        points.refused(leg.stream, why);
                        verdict = Verdict::Pass;
                        continue;
                    }
                },
                Verdict::Pass | Verdict::Withhold { .. } | Verdict::Watch(_) if self.at == At::Head => {
                    self.head_goes(points, leg, refuse, &verdict);
                }
                Verdict::Pass | Verdict::Withhold { .. } | Verdict::Watch(_) => {}
            }
            match self.at {
                At::Head => unreachable!("the head has been dealt with"),
                At::Body => match self.marks.pop() {
                    Some((place, mark)) => {
                        self.written = place;
                        verdict = points.reached(leg.stream, mark);
                    }
                    None if self.response.ends => return self.finished(points, leg),
                    None => {
                        self.at = At::End;
                        if !self.kept_back {
                            self.written = self.response.body.len();
                        }
                        verdict = self.end(points, leg);
                    }
                },
                At::End => return self.finished(points, leg),
            }
        }
    }

    fn is_too_late(&self, act: &Act) -> Option<Refusal> {
        match act {
            Act::Answer(made) if self.head.is_some() && made.trailers.is_none() => Some(Refusal::TooLate),
            _ => None,
        }
    }

    fn head_comes(&self, points: &mut dyn Interceptor, leg: &Leg) -> Verdict {
        let Response { status, lines, ends, .. } = &self.response;
        points.response(leg.stream, &ResponseHead { status: *status, fields: fields(lines), ends: *ends })
    }

    fn head_goes(&mut self, points: &mut dyn Interceptor, leg: &Leg, refuse: &mut Option<Refusal>, verdict: &Verdict) {
        self.at = At::Body;
        let starts = self.response.message_starts();
        match verdict {
            Verdict::Withhold { limit } => {
                self.counts = true;
                let why = match refuse.take_if(|why| matches!(why, Refusal::Size | Refusal::Stream)) {
                    None if starts.len() > 1 => Some(Refusal::Stream),
                    None if self.response.body.len() > *limit => Some(Refusal::Size),
                    why => why,
                };
                if let Some(why) = why {
                    points.refused(leg.stream, why);
                }
                self.kept_back = why.is_none();
            }
            Verdict::Watch(marks) => {
                self.counts = true;
                self.marks = marks.iter().filter_map(|mark| Some((self.place(*mark)?, *mark))).collect();
                self.marks.sort_by(|a, b| b.cmp(a));
            }
            _ => {}
        }
        if !self.kept_back {
            self.write_head(points, leg);
        }
    }

    fn write_head(&mut self, points: &mut dyn Interceptor, leg: &Leg) {
        let edits = points.stamp(leg.stream, Part::Response);
        self.head = Some(edited(self.response.lines.clone(), &edits));
    }

    fn end(&self, points: &mut dyn Interceptor, leg: &Leg) -> Verdict {
        let tail = Tail {
            trailers: self.response.trailers.as_ref().map(fields),
            body: self.kept_back.then_some(&self.response.body[..]),
            messages: self.counts.then(|| self.response.message_starts().len() as u64),
        };
        points.response_end(leg.stream, &tail)
    }

    /// Write what is left of the response, and end the exchange.
    fn finished(&mut self, points: &mut dyn Interceptor, leg: &Leg) -> Passage<Response> {
        if self.head.is_none() {
            self.write_head(points, leg);
        }
        self.written = self.response.body.len();
        let trailers = if self.response.ends {
            None
        } else {
            let edits = points.stamp(leg.stream, Part::ResponseEnd);
            let trailers = edited(self.response.trailers.clone().unwrap_or_default(), &edits);
            (!trailers.is_empty()).then_some(trailers)
        };
        points.closed(leg.stream, Closed::Complete);
        let lines = self.head.take().expect("it has been written");
        Passage::Through(Response { lines, trailers, ..self.response.clone() })
    }

    /// Let the head leave, and no more for now.
    pub(super) fn only_head(&mut self, points: &mut dyn Interceptor, leg: &Leg) -> Lines {
        let verdict = self.head_comes(points, leg);
        assert!(matches!(verdict, Verdict::Pass | Verdict::Watch(_)), "{verdict:?}");
        self.head_goes(points, leg, &mut None, &verdict);
        self.head.clone().expect("it has been written")
    }
}
