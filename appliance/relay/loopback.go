package relay

// loopbackTCP is a TCP node port on a loopback address.
type loopbackTCP struct {
	socket *tcpListener
	port   *tcpPort
}

func (l *loopbackTCP) update(p Port) { l.port.update(p) }

func (l *loopbackTCP) close() {
	l.socket.close()
	l.port.retire()
}

// loopbackUDP is a UDP node port on a loopback address.
type loopbackUDP struct {
	socket *udpListener
	port   *udpPort
}

func (l *loopbackUDP) update(p Port) { l.socket.update(l.port, p) }

func (l *loopbackUDP) close() { l.socket.close() }
