!> Storage and messages by turns, or messages alone: what one does to the other on a shared network.
!>
!> `--messages K`: rank 0 writes block after block to a file, and behind each sends K blocking
!> messages to rank 1; the phases are timed apart. `--latency SECONDS`: messages of 8 bytes go to
!> and fro for so long, and each round trip is counted. What arrives is checked, and so is the file,
!> outside the time.
!>
!> Its exit code: 0 all was right, 1 a message or the file was not, 2 could not be run.
program mixed
  use, intrinsic :: iso_c_binding, only: c_ptr, c_f_pointer, c_associated, c_loc
  use, intrinsic :: iso_fortran_env, only: int64
  use mpi_f08
  use arguments, only: whole, word
  use equations, only: dp
  use failure, only: fail, refuse, exit_not_verified
  use json, only: json_type
  use posix, only: create_file, open_file, write_all, read_all, fsync_file, close_file, &
      aligned_memory, end_with
  use samples, only: samples_type
  implicit none

  character(*), parameter :: usage = 'usage: mixed --messages K --file PATH [--blocks N] ' // &
      '[--block-bytes N] [--message-bytes N] [--direct] [--fsync never|end|block] | ' // &
      '--latency SECONDS; [--report PATH]'
  integer, parameter :: word_bytes = 8
  integer, parameter :: block_multiple = 4096
  !< What O_DIRECT demands of every disk that there is.
  integer, parameter :: last_round = 1

  integer :: rank, ranks, blocks = 1000, block_bytes = 1048576, message_bytes = 1048576
  integer :: messages = -1
  real(dp) :: latency_s = 0, total_s = 0, open_s = 0, close_s = 0
  logical :: direct = .false., is_right = .true.
  character(:), allocatable :: path, report, when
  type(samples_type) :: writes, syncs, sends, round_trips

  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  call read_options()
  if (latency_s > 0) then
    call measure_latency()
  else
    call alternate()
    if (rank == 0) call check_file()
  end if
  call MPI_Allreduce(MPI_IN_PLACE, is_right, 1, MPI_LOGICAL, MPI_LAND, MPI_COMM_WORLD)
  if (rank == 0) call tell()
  call MPI_Finalize()
  if (.not. is_right) call end_with(exit_not_verified)

contains

  subroutine read_options()
    character(:), allocatable :: name
    integer :: i

    path = ''
    report = ''
    when = 'end'
    i = 1
    do while (i <= command_argument_count())
      name = word(i)
      i = i + 1
      if (name == '--direct') then
        direct = .true.
        cycle
      end if
      if (i > command_argument_count()) &
          call refuse(name // ': unknown, or a value is missing; ' // usage)
      select case (name)
      case ('--messages')
        messages = whole(name, word(i), 0)
      case ('--file')
        path = word(i)
      case ('--blocks')
        blocks = whole(name, word(i), 1)
      case ('--block-bytes')
        block_bytes = whole(name, word(i), word_bytes)
      case ('--message-bytes')
        message_bytes = whole(name, word(i), word_bytes)
      case ('--fsync')
        when = word(i)
      case ('--latency')
        latency_s = whole(name, word(i), 1)
      case ('--report')
        report = word(i)
      case default
        call refuse(name // ': unknown; ' // usage)
      end select
      i = i + 1
    end do
    if (ranks /= 2) call refuse('two ranks are needed: a writer and sender, and a receiver')
    if (latency_s > 0 .neqv. messages < 0) call refuse('either --messages or --latency; ' // usage)
    if (messages >= 0 .and. path == '') call refuse('--messages needs a --file')
    if (all(when /= ['never', 'end  ', 'block'])) &
        call refuse('--fsync ' // when // ': allowed are never, end and block')
    if (mod(block_bytes, word_bytes) /= 0 .or. mod(message_bytes, word_bytes) /= 0) &
        call refuse('blocks and messages are multiples of 8 bytes')
    if (direct .and. mod(block_bytes, block_multiple) /= 0) &
        call refuse('--direct: blocks must be multiples of 4096 bytes')
  end subroutine read_options

  !> A block, then its messages, and so on.
  subroutine alternate()
    type(c_ptr) :: memory
    integer(int64), pointer :: block(:)
    integer(int64), allocatable :: message(:)
    integer :: file, b, m
    real(dp) :: begin, t

    allocate (message(message_bytes / word_bytes))
    memory = aligned_memory(block_bytes)
    if (.not. c_associated(memory)) call fail('no memory for a block')
    call c_f_pointer(memory, block, [block_bytes / word_bytes])
    file = -1
    if (rank == 0) then
      t = MPI_Wtime()
      file = create_file(path, direct)
      if (file < 0) call fail(path // ': cannot be created')
      open_s = MPI_Wtime() - t
    end if
    call MPI_Barrier(MPI_COMM_WORLD)
    begin = MPI_Wtime()
    do b = 1, blocks
      if (rank == 0) call put_block(file, memory, block, b)
      do m = 1, messages
        call pass(message, int(b, int64) * messages + m)
      end do
    end do
    if (rank == 0) then
      if (when == 'end') call flush_file(file)
      t = MPI_Wtime()
      if (.not. close_file(file)) call fail(path // ': close failed')
      close_s = MPI_Wtime() - t
    end if
    total_s = MPI_Wtime() - begin
  end subroutine alternate

  subroutine put_block(file, memory, block, number)
    integer, intent(in) :: file, number
    type(c_ptr), intent(in) :: memory
    integer(int64), intent(inout) :: block(:)
    real(dp) :: t

    block = number
    t = MPI_Wtime()
    if (.not. write_all(file, memory, block_bytes)) call fail(path // ': a write failed')
    call writes%add(MPI_Wtime() - t)
    if (when == 'block') call flush_file(file)
  end subroutine put_block

  subroutine flush_file(file)
    integer, intent(in) :: file
    real(dp) :: t

    t = MPI_Wtime()
    if (.not. fsync_file(file)) call fail(path // ': fsync failed')
    call syncs%add(MPI_Wtime() - t)
  end subroutine flush_file

  !> From rank 0 to rank 1.
  subroutine pass(message, content)
    integer(int64), intent(inout) :: message(:)
    integer(int64), intent(in) :: content
    real(dp) :: t

    if (rank == 0) then
      message(1) = content
      message(size(message)) = content
      t = MPI_Wtime()
      call MPI_Send(message, size(message), MPI_INTEGER8, 1, 0, MPI_COMM_WORLD)
      call sends%add(MPI_Wtime() - t)
    else
      call MPI_Recv(message, size(message), MPI_INTEGER8, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE)
      is_right = is_right .and. message(1) == content .and. message(size(message)) == content
    end if
  end subroutine pass

  !> Every word of every block.
  subroutine check_file()
    integer(int64), allocatable, target :: block(:)
    integer :: file, b

    allocate (block(block_bytes / word_bytes))
    file = open_file(path)
    if (file < 0) call fail(path // ': cannot be opened again')
    do b = 1, blocks
      if (.not. read_all(file, c_loc(block), block_bytes)) call fail(path // ': is too short')
      is_right = is_right .and. all(block == b)
    end do
    if (.not. close_file(file)) call fail(path // ': close failed')
  end subroutine check_file

  !> Rank 0 keeps the time; with its last message it says that it is the last.
  subroutine measure_latency()
    integer(int64) :: ball, number
    real(dp) :: begin, t
    logical :: is_last

    call MPI_Barrier(MPI_COMM_WORLD)
    begin = MPI_Wtime()
    is_last = .false.
    number = 0
    do while (.not. is_last)
      number = number + 2
      t = MPI_Wtime()
      if (rank == 0) then
        is_last = t - begin >= latency_s
        ball = number + merge(last_round, 0, is_last)
        call MPI_Send(ball, 1, MPI_INTEGER8, 1, 0, MPI_COMM_WORLD)
        call MPI_Recv(ball, 1, MPI_INTEGER8, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE)
        call round_trips%add(MPI_Wtime() - t)
        is_right = is_right .and. ball == -number
      else
        call MPI_Recv(ball, 1, MPI_INTEGER8, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE)
        is_last = mod(ball, 2_int64) == last_round
        is_right = is_right .and. ball - merge(last_round, 0, is_last) == number
        call MPI_Send(-number, 1, MPI_INTEGER8, 0, 0, MPI_COMM_WORLD)
      end if
    end do
    total_s = MPI_Wtime() - begin
  end subroutine measure_latency

  subroutine tell()
    type(json_type) :: json

    call json%begin(report)
    call json%text('program', 'mixed')
    call json%truth('right', is_right)
    call json%number('total_s', total_s)
    if (latency_s > 0) then
      call round_trips%tell(json, 'round_trip')
    else
      call json%whole('blocks', blocks)
      call json%whole('block_bytes', block_bytes)
      call json%whole('messages', messages)
      call json%whole('message_bytes', message_bytes)
      call json%truth('direct', direct)
      call json%text('fsync', when)
      call json%number('open_s', open_s)
      call writes%tell(json, 'write')
      call syncs%tell(json, 'sync')
      call sends%tell(json, 'send')
      call json%number('close_s', close_s)
    end if
    call json%finish()
  end subroutine tell

end program mixed
