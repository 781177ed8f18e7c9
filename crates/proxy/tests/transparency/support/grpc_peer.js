// The same as grpc_peer.py with Node's gRPC: a server and client without generated code. `node grpc_peer.js serve HOST`,
// `call ADDRESS`, `try ADDRESS SECONDS`, `again ADDRESS`, `anew ADDRESS`, `stream ADDRESS METHOD`, `last ADDRESSES`. Needs
// what `cargo xtask peers` installs.
'use strict';
const grpc = require('@grpc/grpc-js');

const MAX = { 'grpc.max_receive_message_length': -1, 'grpc.max_send_message_length': -1 };
const names = Object.fromEntries(Object.entries(grpc.status).map(([name, code]) => [code, name]));
const same = (bytes) => bytes;
let cancelled = false;
const listeners = [];

function cancel() {
  cancelled = true;
  listeners.splice(0).forEach((listener) => listener());
}

function whenCancelled(then) {
  if (cancelled) then();
  else listeners.push(then);
}

function metadata(pairs) {
  const made = new grpc.Metadata();
  for (const [name, value] of pairs) made.add(name, value);
  return made;
}

const failed = (code, details) => Object.assign(new Error(details), { code, details });

const unary = {
  Unary(call, done) {
    call.sendMetadata(metadata([['x-initial', '1'], ['x-initial-bin', Buffer.from([0, 255])]]));
    const bytes = Buffer.from(Array.from({ length: 40 }, (_, n) => n));
    done(null, Buffer.from(call.request).reverse(), metadata([['x-trailing', '2'], ['x-trailing-bin', bytes]]));
  },
  Refuse: (_, done) => done(failed(grpc.status.FAILED_PRECONDITION, 'refused: \u00e9 100%')),
  Metadata(call, done) {
    const own = Object.keys(call.metadata.getMap()).filter((name) => name.startsWith('x-')).sort();
    const show = (value) => (Buffer.isBuffer(value) ? value.toString('hex') : value);
    done(null, Buffer.from(own.map((name) => `${name}=${call.metadata.get(name).map(show)}`).join('&')));
  },
  LargeTrailers: (_, done) => done(null, Buffer.from('large'), metadata([['x-large', 'v'.repeat(16 * 1024)]])),
  WasCancelled(_, done) {
    const late = setTimeout(() => done(null, Buffer.from('no')), 10000);
    whenCancelled(() => {
      clearTimeout(late);
      done(null, Buffer.from('yes'));
    });
  },
  // Nobody waits for it.
  Slow: (call) => call.on('cancelled', () => {}),
};

const serverStream = {
  Count(call) {
    for (let number = 0; number < Number(call.request.toString()); number++) call.write(Buffer.from(String(number)));
    call.end();
  },
  FailMidway(call) {
    call.write(Buffer.from('one'));
    call.write(Buffer.from('two'));
    call.emit('error', failed(grpc.status.DATA_LOSS, 'midway'));
  },
  Endless(call) {
    call.on('cancelled', cancel);
    call.write(Buffer.from('first'));
  },
  Ticks(call) {
    const tick = setInterval(() => call.write(Buffer.from('tick')), 10);
    call.on('cancelled', () => {
      clearInterval(tick);
      cancel();
    });
  },
};

const clientStream = {
  Collect(call, done) {
    const got = [];
    call.on('data', (message) => got.push(message));
    call.on('end', () => done(null, Buffer.from(got.join('+'))));
  },
};

const bidirectional = {
  Echo(call) {
    call.on('data', (message) => call.write(message));
    call.on('end', () => call.end());
  },
};

function serve(host) {
  const definition = {};
  const add = (methods, requestStream, responseStream) => {
    for (const name of Object.keys(methods)) {
      const codec = { requestSerialize: same, requestDeserialize: same, responseSerialize: same, responseDeserialize: same };
      definition[name] = { path: `/test.Peer/${name}`, requestStream, responseStream, ...codec };
    }
  };
  add(unary, false, false);
  add(serverStream, false, true);
  add(clientStream, true, false);
  add(bidirectional, true, true);
  const options = JSON.parse(process.env.GRPC_OPTIONS || '{}');
  const server = new grpc.Server({ ...MAX, 'grpc.max_metadata_size': 64 * 1024, ...options });
  server.addService(definition, { ...unary, ...serverStream, ...clientStream, ...bidirectional });
  server.bindAsync(`${host}:0`, grpc.ServerCredentials.createInsecure(), (error, port) => {
    if (error) throw error;
    console.log(port);
  });
  process.stdin.on('end', () => process.exit(0)).resume();
}

function connect(address) {
  const options = { ...MAX, 'grpc.use_local_subchannel_pool': 1, ...JSON.parse(process.env.GRPC_OPTIONS || '{}') };
  return new grpc.Client(address, grpc.credentials.createInsecure(), options);
}

/// Metadata of a call: the context of the round, where there is one.
function headed(pairs = [], options = {}) {
  const made = metadata(process.env.TRACESTATE ? [['tracestate', process.env.TRACESTATE], ...pairs] : pairs);
  made.setOptions(options);
  return made;
}

function pairs(made) {
  const hidden = /^(grpc-|content-|user-agent|date)/;
  const show = (value) => (Buffer.isBuffer(value) ? value.toString('hex') : value.length > 100 ? value.length : value);
  const all = Object.keys((made && made.getMap()) || {}).filter((name) => !hidden.test(name));
  return all.map((name) => `${name}=${made.get(name).map(show)}`).join('&');
}

/// What came of a call with one answer.
function ask(client, name, request, { more = [], waitForReady = false, ...options } = {}) {
  return new Promise((resolve) => {
    const seen = { name, initial: undefined, status: undefined, answer: undefined, asked: false };
    const settle = () => seen.asked && seen.status && resolve(seen);
    const done = (_, answer) => {
      seen.answer = answer;
      seen.asked = true;
      settle();
    };
    const path = `/test.Peer/${name}`;
    const context = headed(more, { waitForReady });
    const call = client.makeUnaryRequest(path, same, same, Buffer.from(request), context, options, done);
    call.on('metadata', (initial) => (seen.initial = initial));
    call.on('status', (status) => {
      seen.status = status;
      settle();
    });
  });
}

/// What came of a call with many answers; `onMessage` sees each.
function listen(call, name, onMessage = () => {}) {
  return new Promise((resolve) => {
    const seen = { name, initial: undefined, status: undefined, messages: [] };
    call.on('metadata', (initial) => (seen.initial = initial));
    call.on('data', (message) => {
      seen.messages.push(message.toString());
      onMessage(call);
    });
    call.on('error', () => {});
    call.on('status', (status) => {
      seen.status = status;
      resolve(seen);
    });
  });
}

/// Messages as Python shows them.
const list = (messages) => `[${messages.map((message) => `b'${message}'`).join(', ')}]`;

function show({ name, initial, status, answer, messages }) {
  const got = answer ? (answer.length > 200 ? answer.length : answer.toString('latin1')) : list(messages || []);
  console.log(name, got, names[status.code], JSON.stringify(status.details), pairs(initial), pairs(status.metadata));
}

function counted(client, name, count) {
  return client.makeServerStreamRequest(`/test.Peer/${name}`, same, same, Buffer.from(count), headed());
}

/// Each answer must come before the next request is sent: nothing may be buffered.
function echo(client, count) {
  const call = client.makeBidiStreamRequest('/test.Peer/Echo', same, same, headed());
  let sent = 0;
  const next = () => (sent < count ? call.write(Buffer.from(String(sent++))) : call.end());
  const seen = listen(call, 'Echo', next);
  next();
  return seen;
}

async function call(address) {
  const client = connect(address);
  show(await ask(client, 'Unary', 'abc'));
  show(await ask(client, 'Unary', Buffer.alloc(4 << 20, 'x')));
  show(await ask(client, 'Refuse', ''));
  show(await ask(client, 'Nowhere', ''));
  const more = [['x-b', '2'], ['x-a-bin', Buffer.from([1, 2, 3])], ['x-a', '1'], ['x-a', '0']];
  show(await ask(client, 'Metadata', '', { more }));
  show(await ask(client, 'LargeTrailers', ''));
  show(await listen(counted(client, 'Count', '1000'), 'Count'));
  show(await listen(counted(client, 'Count', '0'), 'Count'));
  show(await listen(counted(client, 'FailMidway', ''), 'FailMidway'));
  await new Promise((resolve) => {
    const collect = client.makeClientStreamRequest('/test.Peer/Collect', same, same, headed(), (error, answer) => {
      console.log('Collect', error, answer && answer.length);
      resolve();
    });
    for (const message of ['a', 'b'.repeat(100000), 'c']) collect.write(Buffer.from(message));
    collect.end();
  });
  show(await echo(client, 50));
  show(await listen(counted(client, 'Endless', ''), 'Endless', (made) => made.cancel()));
  show(await ask(client, 'WasCancelled', ''));
  const slow = await ask(client, 'Slow', '', { deadline: Date.now() + 300 });
  // Its details tell how long it took.
  console.log('Slow', names[slow.status.code]);
  const running = Array.from({ length: 50 }, (_, n) => ask(client, 'Unary', String(n).repeat(1000)));
  console.log('Parallel', (await Promise.all(running)).map((seen) => seen.answer.subarray(0, 2).toString()).join());
  client.close();
}

async function tryOnce(address, seconds) {
  const client = connect(address);
  for (const name of ['Unary', 'Metadata']) {
    const seen = await ask(client, name, 'abc', { deadline: Date.now() + 1000 * seconds });
    console.log([name, names[seen.status.code], ...(seen.status.code ? [seen.status.details] : [])].join(' '));
  }
  client.close();
  // It would wait for a connection that is being made.
  process.exit(0);
}

/// Until the channel knows that it has no connection.
function whenLost(client) {
  const { READY } = grpc.connectivityState;
  const channel = client.getChannel();
  return new Promise((resolve) => {
    const look = () => {
      if (channel.getConnectivityState(false) === READY) channel.watchConnectivityState(READY, Infinity, look);
      else resolve();
    };
    look();
  });
}

async function again(address, anew) {
  const client = connect(address);
  for (const [name, waitForReady] of [['Unary', false], ['Metadata', true]]) {
    const seen = await ask(client, name, 'abc', { deadline: Date.now() + 20000, waitForReady });
    console.log(name, names[seen.status.code]);
    if (anew && !waitForReady) await whenLost(client);
  }
  client.close();
}

async function stream(address, name) {
  const client = connect(address);
  const seen = name === 'Echo' ? await echo(client, 50) : await listen(counted(client, name, '50'), name);
  console.log(name, list(seen.messages), names[seen.status.code], seen.status.details);
  if (name === 'Ticks') {
    console.log('WasCancelled', `b'${(await ask(client, 'WasCancelled', '', { waitForReady: true })).answer}'`);
  }
  console.log('Metadata', names[(await ask(client, 'Metadata', '', { waitForReady: true })).status.code]);
  client.close();
}

/// Calls all the time until the input ends, some at once, on a channel of their own each.
async function last(addresses) {
  const outcomes = {};
  let over = false;
  let answered = 0;
  process.stdin.on('data', () => {}).on('end', () => (over = true));
  const caller = async () => {
    const client = connect(addresses);
    while (!over) {
      const seen = await ask(client, 'Unary', 'abc');
      outcomes[names[seen.status.code]] = (outcomes[names[seen.status.code]] || 0) + 1;
      if (seen.status.code) console.error(seen.status.details);
      if (++answered % 500 === 0) console.log(answered);
    }
    client.close();
  };
  await Promise.all(Array.from({ length: 8 }, caller));
  console.log('outcomes', Object.keys(outcomes).join());
  process.exit(0);
}

const [what, address, more] = process.argv.slice(2);
if (what === 'serve') serve(address);
else if (what === 'try') tryOnce(address, Number(more));
else if (what === 'again' || what === 'anew') again(address, what === 'anew');
else if (what === 'stream') stream(address, more);
else if (what === 'last') last(address);
else call(address);
