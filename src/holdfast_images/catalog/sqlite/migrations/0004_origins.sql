-- Add where verified files came from

-- The same key may be in another bucket, or behind another endpoint. Empty: not known, recorded by an older version.
ALTER TABLE image_verifications ADD COLUMN origin TEXT NOT NULL DEFAULT '';
