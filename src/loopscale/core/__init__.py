"""What every package stands on: errors, files, quantities, tables, schemas, progress and reports."""
