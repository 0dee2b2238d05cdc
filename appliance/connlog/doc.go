// Package connlog writes a line for each connection that ended: JSON, to a file or to the journal.
//
// Who writes never waits. Lines that find no room, or that cannot be written, are lost and counted, and Err says
// why. A file that was renamed is made anew by the next line, so that logrotate(8) needs neither a signal nor copytruncate.
package connlog
