-- What became of the channels that were cut.
ALTER TABLE rounds ADD COLUMN cuts TEXT NOT NULL DEFAULT '[]';
