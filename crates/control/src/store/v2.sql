-- What the arbiter did, for rules over several instances.
ALTER TABLE rounds ADD COLUMN arbiter TEXT NOT NULL DEFAULT '[]';
-- Where the round was run: NULL for here, else the name of what it was imported from.
ALTER TABLE rounds ADD COLUMN imported TEXT;
-- When it ended, seconds since the Unix epoch; NULL while it runs, and for rounds of earlier versions.
ALTER TABLE rounds ADD COLUMN ended INTEGER;
