// Package faulty has an engine of the store whose commits fail as a test asks, and are counted.
//
// It must not import anything of ours but package engine, as the tests of the store use it.
package faulty
